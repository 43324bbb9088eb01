"""NCCL on the stand-in: collectives among processes, as strict as its documentation.

Calls are put into a stream and begin when something waits for them. Those between `groupStart` and `groupEnd` are put
in together at the end; a lone send is complete only when it was received, so that ranks which send first all wait for
ever. A unique id that was not given to all ranks finds nobody. What takes longer than `STANDIN_NCCL_SECONDS` is an
error here, and so are ranks that disagree on count, type, operation or root, ranks that share a GPU unless that was
allowed, host memory, and buffers that overlap in part.

Data lie in files of a folder that the unique id names. STANDIN_NCCL=missing: CuPy without NCCL; hangs: communicators
are never made.
"""

import atexit
import os
import pickle
import shutil
import tempfile
import threading
import time
import weakref

import ml_dtypes
import numpy as np

from .._machine import machine, unlocked
from .runtime import getDeviceProperties

available = os.environ.get("STANDIN_NCCL") != "missing"

NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64 = 0, 1, 2, 3, 4, 5
NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64 = 6, 7, 8  # and 9, bfloat16, which CuPy has no name for
NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN = 0, 1, 2, 3
DTYPES = [np.dtype(one) for one in ("i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ml_dtypes.bfloat16)]
FUNCTIONS = [np.add, np.multiply, np.maximum, np.minimum]
ID_NBYTES = 128
LIMIT_SECONDS = float(os.environ.get("STANDIN_NCCL_SECONDS", 120))


class NcclError(RuntimeError):
    pass


def get_version():
    return 23000


def get_unique_id():
    """Return 128 signed bytes, as CuPy does."""
    folder = tempfile.mkdtemp(prefix="standin-nccl-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # where ranks never found one another
    padded = folder.encode().ljust(ID_NBYTES, b"\0")
    return tuple(int(one) for one in np.frombuffer(padded, np.int8))


class _Group(threading.local):
    depth = 0
    calls = ()


group = _Group()


def groupStart():
    group.depth += 1
    if group.depth == 1:
        group.calls = []


def groupEnd():
    if not group.depth:
        raise NcclError("NCCL_ERROR_INVALID_USAGE: groupEnd without groupStart")
    group.depth -= 1
    if not group.depth:
        calls, group.calls = group.calls, ()
        _put(calls)


def _put(calls):
    """Put calls into their stream as one piece of work."""
    if len({stream for stream, _ in calls}) > 1:
        raise NcclError("NCCL_ERROR_INVALID_USAGE: one group on several streams")
    if calls:
        works = [work for _, work in calls]
        machine.streams[calls[0][0]].put(lambda: _carry_out(works))


def _carry_out(works):
    for work in works:
        work.begin()
    for work in works:
        work.finish()
    for work in works:
        work.wait_until_taken()


def _wait_for(there, what):
    deadline = time.monotonic() + LIMIT_SECONDS
    while not there():
        if time.monotonic() > deadline:
            raise NcclError(f"NCCL_ERROR_SYSTEM_ERROR: waited for {what} for too long")
        time.sleep(0.0005)


class _Work:
    """What one rank does in one call: `sends` (peer, address), `receives` (peer, put) and what peers must agree on."""

    def __init__(self, comm, ordered, said, sends, receives):
        self.comm, self.said, self.sends, self.receives = comm, said, sends, receives
        self.numbers = {
            (kind, peer): comm.next(ordered, kind, peer)
            for kind, some in (("out", sends), ("in", receives))
            for peer in some
        }
        self.ordered, self.files = ordered, []

    def begin(self):
        for peer, values in self.sends.items():
            path = self.comm.path(self.ordered, self.comm.rank, peer, self.numbers["out", peer])
            with open(f"{path}.new", "wb") as file:
                pickle.dump((self.said, values()), file)
            os.rename(f"{path}.new", path)
            self.files.append(path)

    def finish(self):
        for peer, put in self.receives.items():
            path = self.comm.path(self.ordered, peer, self.comm.rank, self.numbers["in", peer])
            _wait_for(lambda path=path: os.path.exists(path), f"rank {peer}")
            with open(path, "rb") as file:
                said, values = pickle.load(file)
            if said != self.said:
                raise NcclError(
                    f"NCCL_ERROR_INVALID_ARGUMENT: rank {peer} says {said}, rank {self.comm.rank} {self.said}"
                )
            put(values)
            os.remove(path)

    def wait_until_taken(self):
        for path in self.files:
            _wait_for(lambda path=path: not os.path.exists(path), "a message to be received")


def _leave(folder, rank, nranks):
    """Remove the folder if all others have left."""
    try:
        open(f"{folder}/left-{rank}", "w").close()
        if all(os.path.exists(f"{folder}/left-{peer}") for peer in range(nranks)):
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # another one that left last has removed it
        pass


class NcclCommunicator:
    def __init__(self, ndev, commId, rank):  # noqa: N803
        if not isinstance(commId, tuple) or len(commId) != ID_NBYTES:
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: a unique id is a tuple of 128 numbers")
        if os.environ.get("STANDIN_NCCL") == "hangs":
            time.sleep(3600)
        self.folder = bytes(np.array(commId, np.int8)).rstrip(b"\0").decode()
        self.rank, self.nranks, self._numbers = rank, ndev, {}
        self._leave = weakref.finalize(self, _leave, self.folder, rank, ndev)
        self.algorithm = os.environ.get("NCCL_ALGO", "")  # read now, as NCCL does
        gpu = getDeviceProperties(machine.device)["uuid"].hex()
        with open(f"{self.folder}/rank-{rank}.new", "w") as file:
            file.write(gpu)
        os.rename(f"{self.folder}/rank-{rank}.new", f"{self.folder}/rank-{rank}")
        gpus = []
        for peer in range(ndev):
            path = f"{self.folder}/rank-{peer}"
            _wait_for(lambda path=path: os.path.exists(path), f"rank {peer}")
            with open(path) as file:
                gpus.append(file.read())
        if len(set(gpus)) < ndev and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
            raise NcclError("NCCL_ERROR_INVALID_USAGE: several ranks use the same GPU")

    def next(self, ordered, kind, peer):
        number = self._numbers[ordered, kind, peer] = self._numbers.get((ordered, kind, peer), -1) + 1
        return number

    def path(self, ordered, source, target, number):
        return f"{self.folder}/{ordered}-{source}-{target}-{number}"

    def destroy(self):
        self._leave()

    abort = destroy

    def check_async_error(self):
        pass

    def size(self):
        return self.nranks

    def rank_id(self):
        return self.rank

    # Calls

    def _do(self, stream, ordered, said, sends, receives):
        machine.counts["nccl"] += 1
        call = stream, _Work(self, ordered, said, sends, receives)
        if group.depth:
            group.calls.append(call)
        else:
            _put([call])

    def send(self, sendbuf, count, datatype, peer, stream):
        read = _reader(sendbuf, count, datatype)
        self._do(stream, "message", (count, datatype), {self._peer(peer): read}, {})

    def recv(self, recvbuf, count, datatype, peer, stream):
        write = _writer(recvbuf, count, datatype)
        self._do(stream, "message", (count, datatype), {}, {self._peer(peer): write})

    def _peer(self, peer):
        if not 0 <= peer < self.nranks:
            raise NcclError(f"NCCL_ERROR_INVALID_ARGUMENT: there is no rank {peer}")
        return peer

    def _collective(self, stream, said, read, put):
        """Everyone tells everyone what it has; `put` gets what all ranks have, when it has all of it."""
        came = {}

        def take(peer, values):
            came[peer] = values
            if len(came) == self.nranks and put is not None:
                put([came[peer] for peer in range(self.nranks)])

        receives = {peer: (lambda values, peer=peer: take(peer, values)) for peer in range(self.nranks)}
        self._do(stream, "collective", said, dict.fromkeys(range(self.nranks), read), receives)

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
        nbytes = count * DTYPES[datatype].itemsize
        _check_apart(sendbuf, nbytes, recvbuf, nbytes, recvbuf)
        write = _writer(recvbuf, count, datatype)
        said = ("all-reduce", count, datatype, op)
        self._collective(stream, said, _reader(sendbuf, count, datatype), lambda every: write(_combined(every, op)))

    def reduce(self, sendbuf, recvbuf, count, datatype, op, root, stream):
        put, said = None, ("reduce", count, datatype, op, self._peer(root))
        if self.rank == root:
            nbytes = count * DTYPES[datatype].itemsize
            _check_apart(sendbuf, nbytes, recvbuf, nbytes, recvbuf)
            write = _writer(recvbuf, count, datatype)
            put = lambda every: write(_combined(every, op))  # noqa: E731
        self._collective(stream, said, _reader(sendbuf, count, datatype), put)

    def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream):
        write = _writer(recvbuff, count, datatype)
        read = _reader(sendbuff, count, datatype) if self.rank == self._peer(root) else lambda: None
        self._collective(stream, ("broadcast", count, datatype, root), read, lambda every: write(every[root]))

    def bcast(self, buff, count, datatype, root, stream):
        self.broadcast(buff, buff, count, datatype, root, stream)

    def allGather(self, sendbuf, recvbuf, count, datatype, stream):
        nbytes = count * DTYPES[datatype].itemsize
        _check_apart(sendbuf, nbytes, recvbuf, nbytes * self.nranks, recvbuf + self.rank * nbytes)
        write = _writer(recvbuf, count * self.nranks, datatype)
        said = ("all-gather", count, datatype)
        self._collective(stream, said, _reader(sendbuf, count, datatype), lambda every: write(np.concatenate(every)))

    def reduceScatter(self, sendbuf, recvbuf, recvcount, datatype, op, stream):
        nbytes, mine = recvcount * DTYPES[datatype].itemsize, slice(self.rank * recvcount, (self.rank + 1) * recvcount)
        _check_apart(recvbuf, nbytes, sendbuf, nbytes * self.nranks, sendbuf + self.rank * nbytes)
        write = _writer(recvbuf, recvcount, datatype)
        read = _reader(sendbuf, recvcount * self.nranks, datatype)
        said = ("reduce-scatter", recvcount, datatype, op)
        self._collective(stream, said, read, lambda every: write(_combined(every, op)[mine]))


def _check_apart(one, one_nbytes, other, other_nbytes, in_place):
    """Refuse buffers that overlap, unless `one` begins exactly where it does in place."""
    if one != in_place and one < other + other_nbytes and other < one + one_nbytes:
        raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: buffers overlap, and not as in place")


def _combined(every, op):
    result = every[0].copy()
    for one in every[1:]:
        FUNCTIONS[op](result, one, out=result)
    return result


def _twin(address, count, datatype):
    memory = machine.allocation_at(address, count * DTYPES[datatype].itemsize)
    return memory, np.frombuffer(memory.memory, DTYPES[datatype], count, address - memory.ptr)


def _reader(address, count, datatype):
    memory, twin = _twin(address, count, datatype)

    def read():
        with unlocked(memory):
            return twin.copy()

    return read


def _writer(address, count, datatype):
    memory, twin = _twin(address, count, datatype)

    def write(values):
        with unlocked(memory):
            np.copyto(twin, values)

    return write
