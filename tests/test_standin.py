"""The stand-in for a GPU is as strict as it claims, or tests on it would show nothing."""

import ctypes
import math
import operator
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

STANDIN = Path(__file__).parent / "standin"


@pytest.fixture
def cupy(standin):
    return standin


def test_the_host_cannot_touch_device_memory():
    words = "import cupy, ctypes; ctypes.string_at(cupy.zeros(4).data.ptr, 1)"
    ended = subprocess.run([sys.executable, "-c", words], cwd=STANDIN, capture_output=True)
    assert ended.returncode == -signal.SIGSEGV, ended.stderr


def two(cupy):
    return cupy.asarray(np.arange(2.0))


# What, how, and whether CuPy refuses it too; where not, it waits for the GPU unasked, which no measurement should.
REFUSED = [
    ("np.asarray", lambda cupy, a: np.asarray(a), True),
    ("np.array", lambda cupy, a: np.array(a), True),
    ("np.from_dlpack", lambda cupy, a: np.from_dlpack(a), True),
    ("memoryview", lambda cupy, a: memoryview(a), True),
    ("np.frombuffer", lambda cupy, a: np.frombuffer(a), True),
    ("from a NumPy array", lambda cupy, a: np.copyto(np.ones(2), a), True),
    ("into a NumPy array", lambda cupy, a: np.ones(2).__setitem__(slice(None), a), True),
    ("NumPy array + array", lambda cupy, a: np.ones(2) + a, True),
    ("array + NumPy array", lambda cupy, a: a + np.ones(2), True),
    ("a ufunc of a NumPy array", lambda cupy, a: cupy.add(a, np.ones(2)), True),
    ("out= a NumPy array", lambda cupy, a: cupy.add(a, a, out=np.ones(2)), True),
    ("concatenate with a NumPy array", lambda cupy, a: cupy.concatenate([a, np.ones(2)]), True),
    ("set by a NumPy array", lambda cupy, a: a.__setitem__(slice(None), np.ones(2)), True),
    ("operator.index", lambda cupy, a: operator.index(a[:1]), False),
    ("float", lambda cupy, a: float(a[0]), False),
    ("int", lambda cupy, a: int(a[0]), False),
    ("complex", lambda cupy, a: complex(a[0]), False),
    ("bool", lambda cupy, a: bool(a[0]), False),
    ("if", lambda cupy, a: 1 if a[0] > 0 else 2, False),
    ("in", lambda cupy, a: 1.0 in a, False),
    ("== of lists", lambda cupy, a: [a] == [cupy.asarray(np.ones(2))], False),
    ("list", lambda cupy, a: list(a), False),
    ("item", lambda cupy, a: a.item(), False),
    ("tolist", lambda cupy, a: a.tolist(), False),
    ("math.sqrt", lambda cupy, a: math.sqrt(a[0]), False),
    ("a mask", lambda cupy, a: a[a > 0], False),
    ("np.sum", lambda cupy, a: np.sum(a), False),
    ("np.exp", lambda cupy, a: np.exp(a), False),
    ("np.concatenate", lambda cupy, a: np.concatenate([a, a]), False),
    ("np.einsum", lambda cupy, a: np.einsum("i,i", a, a), False),
    ("np.add with out", lambda cupy, a: np.add(a, a, out=a), False),
    ("np.float64 * array", lambda cupy, a: np.float64(2) * a, False),
    ("places in a NumPy array", lambda cupy, a: a[np.arange(2)], False),
]


@pytest.mark.parametrize(("what", "use", "by_cupy"), REFUSED, ids=[what for what, *_ in REFUSED])
def test_nothing_comes_to_the_host_without_being_asked_for(cupy, what, use, by_cupy):
    array = two(cupy)
    cupy.machine.counts.clear()
    with pytest.raises((TypeError, BufferError, RuntimeError, NotImplementedError)):
        use(cupy, array)
    assert cupy.machine.counts["device to host"] == cupy.machine.counts["synchronisations"] == 0


@pytest.mark.parametrize(("what", "use", "by_cupy"), REFUSED, ids=[what for what, *_ in REFUSED])
def test_what_is_said_to_be_refused_by_cupy_is(gpu, what, use, by_cupy):
    if hasattr(gpu, "machine"):
        pytest.skip("there is no real GPU")
    if not by_cupy:
        pytest.skip("CuPy waits for the GPU here")
    with pytest.raises((TypeError, BufferError, RuntimeError, ValueError)):
        use(gpu, two(gpu))


COMPUTED = {
    "numbers of Python": lambda cupy, a: 1 / (2 * a + 1) - a**2,
    "reductions": lambda cupy, a: a.sum(axis=-1, keepdims=True) + a.max(axis=0) - a.mean(axis=-1, keepdims=True),
    "comparisons": lambda cupy, a: cupy.where(a > 2, a, -math.inf),
    "products": lambda cupy, a: a @ a.T + cupy.einsum("ij,kj->ik", a, a, optimize=True),
    "functions": lambda cupy, a: cupy.exp(cupy.sqrt(a)) + cupy.log(a + 1),
    "places": lambda cupy, a: a[cupy.asarray(np.array([[1, 0], [2, 2]]))],
    "views": lambda cupy, a: a.reshape(2, -1).T[1:, ::-1].transpose(1, 0) * a[0, 1],
    "joins": lambda cupy, a: cupy.concatenate([cupy.stack(cupy.split(a, 3)), cupy.repeat(a[None], 2, axis=0)[:, :1]]),
    "along": lambda cupy, a: cupy.take_along_axis(a, cupy.asarray(np.array([[1], [0], [3]])), axis=-1),
}


@pytest.mark.parametrize("compute", COMPUTED.values(), ids=COMPUTED)
def test_functions_give_what_numpy_gives_and_begin_late(gpu, compute):
    values = np.arange(12.0).reshape(3, 4)
    array = gpu.asarray(values)
    standin = hasattr(gpu, "machine")
    if standin:
        gpu.machine.run_all()
    result = compute(gpu, array)
    assert not standin or not gpu.machine.idle  # shape and dtype are known before any value is
    wanted = compute(np, values)
    assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(result.get(), wanted, rtol=1e-14)


def test_places_are_added_to_and_set(gpu):
    places, values = np.array([2, 0, 2]), np.arange(6.0).reshape(3, 2)
    results = []
    for module in (np, gpu):
        target = module.zeros((4, 2))
        on = (lambda one: one) if module is np else module.asarray
        module.add.at(target, on(places), on(values))
        target[on(places[:2]), on(np.array([1, 1]))] = 7.0
        target[3] -= 1
        results.append(target if module is np else target.get())
    np.testing.assert_array_equal(*results)


def test_other_libraries_get_device_memory(cupy):
    array = two(cupy)
    assert array.__dlpack_device__() == (2, 0)  # kDLCUDA
    for capsule in (array.__dlpack__(), array.__dlpack__(max_version=(1, 0))):
        assert described(cupy, capsule) == (array.data.ptr, 2, 0, 1, (2,), 64)
    for wanted in ((1, 0), (2, 1)):  # the host, another GPU
        with pytest.raises(BufferError, match="shows no memory to"):
            array.__dlpack__(dl_device=wanted)


def described(cupy, capsule):
    """Read a capsule as a consumer does; the name of the form is at its end."""
    name, get = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    form = {b"dltensor": cupy._dlpack.Managed, b"dltensor_versioned": cupy._dlpack.Versioned}[name(capsule)]
    tensor = form.from_address(get(capsule, name(capsule))).tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    return tensor.data, tensor.device_type, tensor.device_id, tensor.ndim, shape, tensor.bits


def test_a_consumer_ends_with_a_fault_if_it_takes_device_memory_for_the_hosts():
    words = "import cupy, ctypes; a = cupy.zeros(4); c = a.__dlpack__(); m = next(iter(cupy._dlpack.lent.values()))[1]"
    words += "; ctypes.string_at(m.tensor.data, 1)"
    ended = subprocess.run([sys.executable, "-c", words], cwd=STANDIN, capture_output=True)
    assert ended.returncode == -signal.SIGSEGV, ended.stderr


def test_a_consumers_stream_waits_for_what_is_queued(cupy):
    array, side = cupy.zeros(2), cupy.cuda.Stream(non_blocking=True)
    array.fill(7)
    array.__dlpack__(stream=side.ptr)
    assert array.get(stream=side).tolist() == [7, 7]
    with pytest.raises(ValueError, match="there is no stream"):
        array.__dlpack__(stream=12345)


def test_what_was_handed_out_lives_until_it_is_let_go(cupy):
    lent, array = cupy._dlpack.lent, two(cupy)
    cupy._dlpack.sweep()
    before = len(lent)
    capsule = array.__dlpack__()
    del array
    assert len(lent) == before + 1
    del capsule  # which nobody emptied
    cupy._dlpack.sweep()
    assert len(lent) == before


def test_arrays_are_pieces_of_larger_allocations(cupy):
    runtime, (one, other) = cupy.cuda.runtime, (cupy.empty(10), cupy.empty(10))
    assert runtime.ipcGetMemHandle(one.data.ptr) == runtime.ipcGetMemHandle(other.data.ptr)
    assert one.data.ptr != other.data.ptr
    large = cupy.empty(1 << 19)
    assert runtime.ipcGetMemHandle(large.data.ptr) != runtime.ipcGetMemHandle(one.data.ptr)


def test_work_begins_only_when_something_waits_for_it(cupy):
    pinned = __import__("cupyx").empty_pinned(3, np.float32)
    pinned[:] = 5
    array = cupy.asarray(np.arange(3, dtype=np.float32))
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    runtime.memcpyAsync(pinned.ctypes.data, array.data.ptr, array.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
    assert pinned.tolist() == [5, 5, 5]
    assert not cupy.machine.idle
    stream.synchronize()
    assert pinned.tolist() == [0, 1, 2]
    assert cupy.machine.counts["device to host"] == 1
    assert cupy.machine.counts["synchronisations"] == 1


def test_streams_are_in_order_only_where_an_event_says_so(cupy):
    array, side = cupy.zeros(2), cupy.cuda.Stream(non_blocking=True)
    array.fill(7)
    assert array.get(stream=side).tobytes() == b"\xee" * 16  # not even the zeros are there
    side.wait_event(cupy.cuda.get_current_stream().record())
    assert array.get(stream=side).tolist() == [7, 7]


def test_work_is_carried_out_though_nobody_has_its_stream_any_more(cupy):
    array = cupy.zeros(2)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True):
        array.fill(3)
    cupy.cuda.Device().synchronize()
    assert array.get().tolist() == [3, 3]
    assert not cupy.machine.busy


def test_a_copy_beside_work_needs_pinned_memory(cupy):
    runtime, array, host = cupy.cuda.runtime, cupy.zeros(2), np.zeros(2)
    with pytest.raises(RuntimeError, match="pinned"):
        runtime.memcpyAsync(array.data.ptr, host.ctypes.data, 16, runtime.memcpyHostToDevice, 0)


def test_memory_of_the_host_is_accessed_where_it_is_registered(cupy):
    runtime, host = cupy.cuda.runtime, np.arange(4.0)
    address, nbytes = host.ctypes.data, host.nbytes

    def seen():
        memory = cupy.cuda.UnownedMemory(runtime.pointerGetAttributes(address).devicePointer, nbytes, host, 0)
        return cupy.ndarray((4,), np.float64, memptr=cupy.cuda.MemoryPointer(memory, 0))

    with pytest.raises(RuntimeError, match="no device memory at this address"):
        seen()
    runtime.hostRegister(address, nbytes, 3)
    with pytest.raises(RuntimeError, match="AlreadyRegistered"):
        runtime.hostRegister(address + 8, 8, 3)
    array = cupy.zeros(4)
    cupy.copyto(array, seen())
    host[0] = 9  # the copy has not begun
    assert array.get().tolist() == [9, 1, 2, 3]
    assert cupy.machine.counts["host to device"] == 1
    runtime.hostUnregister(address)
    with pytest.raises(RuntimeError, match="NotRegistered"):
        runtime.hostUnregister(address)


def test_memory_is_limited_and_given_back(cupy):
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    used = cupy.machine.used_nbytes
    array = cupy.empty(1 << 20)
    assert cupy.machine.used_nbytes == used + (8 << 20)
    del array
    assert cupy.machine.used_nbytes == used + (8 << 20)  # the pool has it, for the next array of this process alone
    assert cupy.empty(1 << 20).nbytes == 8 << 20
    assert cupy.machine.used_nbytes == used + (8 << 20)
    pool.free_all_blocks()
    assert cupy.machine.used_nbytes == used
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.empty(1 << 30)


DOUBLE = """
#ifdef __cplusplus
extern "C"
#endif
__global__ void doubled(const float *from, float *into, long long count)
{
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        into[i] = from[i] + from[i];
}
"""


@pytest.fixture
def doubled(kernels, standin):
    return kernels.RawModule(code=DOUBLE).get_function("doubled")


def test_a_kernel_is_the_very_source_and_waits_for_its_turn(cupy, doubled):
    values = np.arange(10, dtype=np.float32)
    array = cupy.asarray(values)
    into = cupy.zeros(10, np.float32)
    cupy.cuda.get_current_stream().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as side:
        doubled((3,), (4,), (array, into, 10))
        assert into.get(stream=cupy.cuda.Stream.null).tolist() == [0] * 10  # not even begun
        side.synchronize()
    assert into.get().tolist() == [*(2 * values)]
    doubled((1,), (4,), (array, into, 10))  # too few threads
    assert into.get().tolist() == [*(2 * values)]


def test_a_kernel_takes_what_it_says_and_nothing_else(cupy, doubled):
    one, other, host = cupy.zeros(4, np.float32), cupy.zeros(4, np.float32), np.zeros(4, np.float32)
    for arguments, says in (
        ((one, other), "takes 3 arguments, not 2"),
        ((one, other, 4, 4), "takes 3 arguments, not 4"),
        ((one, host, 4), "takes an array of the device for a float"),
        ((one, other.data.ptr, 4), "not a int"),
        ((one, cupy.zeros(4), 4), "takes a contiguous array of float, not of float64"),
        ((one[::2], other, 2), "takes a contiguous array"),
        ((one, other, 4.0), "takes a long long, which a float is not"),
        ((one, other, np.int32(4)), "takes a long long, which a int32 is not"),
    ):
        with pytest.raises(TypeError, match=says):
            doubled((1,), (4,), arguments)
    with pytest.raises(TypeError, match="the grid is a tuple"):
        doubled(1, (4,), (one, other, 4))
    for block in ((0,), (2048,), (32, 64)):
        with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
            doubled((1,), block, (one, other, 4))
    assert cupy.machine.counts["kernels"] == 3  # the zeros


def test_a_source_that_does_not_compile_and_a_kernel_that_is_none_are_refused(cupy, kernels):
    with pytest.raises(RuntimeError, match="does not compile"):
        cupy.RawModule(code=DOUBLE.replace("from[i];", "nothing[i];")).get_function("doubled")
    with pytest.raises(RuntimeError, match="named symbol not found: halved"):
        cupy.RawModule(code=DOUBLE).get_function("halved")


@pytest.mark.parametrize(
    ("source", "dies"),
    [
        (DOUBLE.replace("from[i];", "from[i + (1LL << 40)];"), signal.SIGSEGV),
        (DOUBLE.replace("from[i];", "*(const float *)((const char *)from + 1);"), signal.SIGILL),
        (DOUBLE.replace("from[i];", "(float)(2147483647 + (int)count);"), signal.SIGILL),
    ],
    ids=["beyond its arrays", "misaligned", "signed overflow"],
)
def test_what_a_gpu_faults_at_or_may_do_as_it_likes_ends_the_process(kernels, standin, source, dies):
    words = f"""
import cupy, numpy
one, other = cupy.zeros(4, numpy.float32), cupy.zeros(4, numpy.float32)
cupy.RawModule(code={source!r}).get_function("doubled")((1,), (4,), (one, other, 4))
cupy.cuda.get_current_stream().synchronize()
"""
    ended = subprocess.run([sys.executable, "-c", words], cwd=STANDIN, capture_output=True)
    assert ended.returncode == -dies, ended.stderr
