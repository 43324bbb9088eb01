"""Collective primitives, native and by hand; algorithms are data that is proved without MPI.

from collectives import allreduce
allreduce(comm, send, recv, algorithm="ring")

with allreduce.plan(comm, send, recv, algorithm="ring") as plan:
    plan()
"""

from collectives.allgather import allgather
from collectives.allreduce import allreduce
from collectives.alltoall import alltoall
from collectives.barrier import barrier
from collectives.broadcast import broadcast
from collectives.buffers import Arena
from collectives.gather import gather
from collectives.reduce import reduce
from collectives.reduce_scatter import reduce_scatter
from collectives.scatter import scatter
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
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "exchange",
    "gather",
    "pingpong",
    "reduce",
    "reduce_scatter",
    "ring_shift",
    "scatter",
    "stream",
]
