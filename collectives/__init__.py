"""Collective primitives, native and by hand; algorithms are data that is proved without MPI.

from collectives import allreduce
allreduce(comm, send, recv, algorithm="ring")

with allreduce.plan(comm, send, recv, algorithm="ring") as plan:
    plan()
"""

from collectives import hierarchy, windowed
from collectives.allgather import allgather, allgatherv
from collectives.allreduce import allreduce
from collectives.alltoall import alltoall
from collectives.alltoallv import alltoallv
from collectives.barrier import barrier
from collectives.broadcast import broadcast
from collectives.buffers import Arena
from collectives.gather import gather, gatherv
from collectives.reduce import reduce
from collectives.reduce_scatter import reduce_scatter, reduce_scatterv
from collectives.registered import alloc, alloc_common, release
from collectives.scan import exscan, scan
from collectives.scatter import scatter, scatterv
from collectives.sendrecv import exchange, pingpong, ring_shift, stream

PRIMITIVES = {
    primitive.name: primitive
    for primitive in (
        broadcast,
        scatter,
        gather,
        reduce,
        allgather,
        allreduce,
        reduce_scatter,
        alltoall,
        scan,
        exscan,
        scatterv,
        gatherv,
        allgatherv,
        reduce_scatterv,
        alltoallv,
        pingpong,
        stream,
        exchange,
        ring_shift,
        barrier,
    )
}
"""Every primitive by name, in the order in which people list them."""

__all__ = [
    "PRIMITIVES",
    "Arena",
    "allgather",
    "allgatherv",
    "alloc",
    "alloc_common",
    "allreduce",
    "alltoall",
    "alltoallv",
    "barrier",
    "broadcast",
    "exchange",
    "exscan",
    "gather",
    "gatherv",
    "hierarchy",
    "pingpong",
    "reduce",
    "reduce_scatter",
    "reduce_scatterv",
    "release",
    "ring_shift",
    "scan",
    "scatter",
    "scatterv",
    "stream",
    "windowed",
]
