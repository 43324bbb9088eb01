"""The stand-in for a GPU is as strict as it claims, or tests on it would show nothing."""

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


@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        np.sum,
        float,
        int,
        bool,
        list,
        len,
        lambda one: np.add(one, one),
        lambda one: np.copyto(np.ones(1), one),
    ],
    ids=str,
)
def test_nothing_is_converted_without_being_asked_for(cupy, convert):
    one = cupy.zeros(1)
    if convert is len:
        assert len(one) == 1
        return
    with pytest.raises(TypeError):
        convert(one)


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


def test_a_copy_beside_work_needs_pinned_memory(cupy):
    runtime, array, host = cupy.cuda.runtime, cupy.zeros(2), np.zeros(2)
    with pytest.raises(RuntimeError, match="pinned"):
        runtime.memcpyAsync(array.data.ptr, host.ctypes.data, 16, runtime.memcpyHostToDevice, 0)


def test_memory_is_limited_and_given_back(cupy):
    used = cupy.machine.used_nbytes
    array = cupy.empty(1 << 20)
    assert cupy.machine.used_nbytes == used + (8 << 20)
    del array
    assert cupy.machine.used_nbytes == used
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.empty(1 << 30)
