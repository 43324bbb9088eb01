"""The GPU that the stand-in pretends: memory behind locked pages, and queues of work that nobody has begun.

Stricter than a GPU: the host cannot touch device memory (its pages are not readable nor writable, so whoever tries
ends with a segmentation fault), work begins only when something waits for it, and copies beside work need pinned
memory of the host. `machine.eager` lets streams made from then on begin at once what they can: the other extreme.
STANDIN_CUDA_AWARE=1, or `machine.unlocked` for memory made from then on, lets the host touch it, so that any MPI is one
that knows of GPUs; it still reads stale data where nothing waited for the work that was queued.
"""

import ctypes
import itertools
import mmap
import os
import threading
import weakref
from collections import Counter, deque
from contextlib import contextmanager

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
READ_WRITE, NONE = mmap.PROT_READ | mmap.PROT_WRITE, 0


class CUDARuntimeError(RuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    pass


class Pages:
    """Memory that the host cannot touch unless the machine was `unlocked` when it was made."""

    def lock(self):
        self.locked = not machine.unlocked
        if self.locked:
            _protect(self.ptr, self.size, NONE)


class Allocation(Pages):
    """Pages that the host cannot touch, as CuPy's memory objects are: `ptr` and `size`."""

    exportable = True
    """Whether other processes may open it."""

    def __init__(self, nbytes):
        machine.reserve(nbytes)
        self.size, self.device = nbytes, machine.device
        self.file = os.memfd_create("stand-in")  # so that other processes can open it
        os.ftruncate(self.file, max(1, nbytes))
        self.pages = mmap.mmap(self.file, max(1, nbytes))
        self.memory = (ctypes.c_ubyte * max(1, nbytes)).from_buffer(self.pages)
        self.ptr = ctypes.addressof(self.memory)
        ctypes.memset(self.ptr, 0xEE, nbytes)
        self.lock()
        weakref.finalize(self, machine.give_back, nbytes, self.file)
        machine.allocations[self.ptr] = self


class Registered(Pages):
    """Memory of the host that its owner may touch and a GPU may access too: from its pages' beginning to their end."""

    exportable = False

    def __init__(self, ptr, nbytes):
        self.ptr, self.size, self.device, self.locked = ptr, nbytes, machine.device, False
        self.memory = (ctypes.c_ubyte * nbytes).from_address(ptr)
        machine.allocations[ptr] = self


class Opened(Pages):
    """An allocation of another process: its pages, as far from the host's reach as the own ones."""

    exportable = False

    def __init__(self, process, file, nbytes, device):
        self.size, self.device = nbytes, device
        with open(f"/proc/{process}/fd/{file}", "r+b") as pages:
            self.pages = mmap.mmap(pages.fileno(), max(1, nbytes))
        self.memory = (ctypes.c_ubyte * max(1, nbytes)).from_buffer(self.pages)
        self.ptr = ctypes.addressof(self.memory)
        self.lock()
        machine.allocations[self.ptr] = self


def _protect(address, nbytes, how):
    if _libc.mprotect(address, max(1, nbytes), how):
        raise OSError(ctypes.get_errno(), "mprotect")


@contextmanager
def unlocked(*allocations):
    """Let the stand-in touch these allocations."""
    locked = [one for one in allocations if one.locked]
    for one in locked:
        _protect(one.ptr, one.size, READ_WRITE)
    try:
        yield
    finally:
        for one in locked:
            _protect(one.ptr, one.size, NONE)


class Event:
    """Some place in a stream's queue."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        self._stream, self._place = None, 0

    def record(self, stream=None):
        stream = machine.null if stream is None else stream
        self._stream, self._place = stream, stream.put_in

    @property
    def done(self):
        """Looking lets the GPU get on by one piece of work, as time would."""
        if self._stream is not None and self._stream.begun < self._place:
            self._stream.run(self._stream.begun + 1)
        return self._stream is None or self._stream.begun >= self._place

    def synchronize(self):
        machine.counts["synchronisations"] += 1
        if self._stream is not None:
            self._stream.run(self._place)


class Stream:
    """A queue of work. `begun` and `put_in` count what was carried out and what was put in."""

    null = None  # the default stream, set below

    def __init__(self, null=False, non_blocking=False, ptds=False):
        self.is_non_blocking = non_blocking
        self.ptr = 0 if null else next(machine.numbers)
        self.put_in = self.begun = 0
        self._queue = deque()
        self._eager = machine.eager and not null
        machine.streams[self.ptr] = self

    def put(self, work):
        self._queue.append(work)
        self.put_in += 1
        machine.busy.add(self)
        if self._eager:
            self.run(self.put_in)

    def run(self, place):
        while self.begun < place:
            work = self._queue.popleft()
            self.begun += 1  # also if it fails
            work()
        if not self._queue:
            machine.busy.discard(self)

    def record(self, event=None):
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event):
        stream, place = event._stream, event._place
        if stream is not None:
            self.put(lambda: stream.run(place))

    def synchronize(self):
        machine.counts["synchronisations"] += 1
        self.run(self.put_in)

    @property
    def done(self):
        return not self._queue

    def use(self):
        machine.current.stack[-1:] = [self]
        return self

    def __enter__(self):
        machine.current.stack.append(self)
        return self

    def __exit__(self, *exception):
        machine.current.stack.pop()


class _Current(threading.local):
    def __init__(self):
        self.stack = [machine.null]


def visible(ngpus, chosen):
    """List which of a node's GPUs this process sees, by their ordinals here; up to the first that is not there."""
    numbers = range(ngpus) if chosen is None else [int(one) for one in chosen.split(",") if one]
    return list(itertools.takewhile(lambda number: 0 <= number < ngpus, numbers))


class Machine:
    """All GPUs that this process sees, and what was done with them."""

    @property
    def ngpus(self):
        return len(self.visible)

    def __init__(self):
        self.visible = visible(int(os.environ.get("STANDIN_GPUS", 1)), os.environ.get("CUDA_VISIBLE_DEVICES"))
        self.total_nbytes = int(os.environ.get("STANDIN_NBYTES", 1 << 30))
        self.told_nbytes = int(os.environ.get("STANDIN_CLAIMS_NBYTES", self.total_nbytes))  # what it claims to have
        self.used_nbytes = 0
        self.device = 0
        self.eager = False
        self.unlocked = os.environ.get("STANDIN_CUDA_AWARE") == "1"
        self.lacks = os.environ.get("STANDIN_LACKS", "").split(",")  # ipc: handles cannot be opened; register
        self.counts = Counter()
        self.modules = {}  # compiled kernels by source
        self.kept = {}  # what CUDA's own calls allocated or opened, by address
        self.registered = {}  # memory of the host, by address
        self.numbers = iter(range(0x1000, 1 << 30, 16))
        self.allocations = weakref.WeakValueDictionary()
        self.pinned = weakref.WeakValueDictionary()
        self.streams = weakref.WeakValueDictionary()
        self.busy = set()  # streams with work, which is carried out also when nobody has the stream any more

    def reserve(self, nbytes):
        if self.used_nbytes + nbytes > self.total_nbytes:
            raise OutOfMemoryError(f"Out of memory allocating {nbytes} bytes (allocated so far: {self.used_nbytes}).")
        self.used_nbytes += nbytes

    def give_back(self, nbytes, file):
        self.used_nbytes -= nbytes
        os.close(file)

    def stream(self):
        return self.current.stack[-1]

    def allocation_at(self, address, nbytes):
        for one in list(self.allocations.values()):
            if one.ptr <= address and address + nbytes <= one.ptr + one.size:
                return one
        raise CUDARuntimeError("cudaErrorInvalidValue: invalid argument: no device memory at this address")

    def is_pinned(self, address, nbytes):
        return any(
            one.ctypes.data <= address and address + nbytes <= one.ctypes.data + one.nbytes
            for one in list(self.pinned.values())
        )

    def run_all(self):
        for one in list(self.streams.values()):
            one.run(one.put_in)

    @property
    def idle(self):
        """Whether nothing is queued anywhere."""
        return all(one.done for one in list(self.streams.values()))


class Pinned(np.ndarray):
    """Memory of the host that a GPU may access beside other work; numpy.ndarray itself cannot be referred to weakly."""


machine = Machine()
machine.null = Stream.null = Stream(null=True)
machine.current = _Current()
