"""Raw kernels on the stand-in: the very source that a GPU would get, built by a C compiler and run thread by thread.

Stricter than a GPU: a call with too few arguments, memory of the host, an array whose elements are not those that a
pointer says, or a Python number where the kernel takes no `long long`, is refused; a misaligned access, a shift too far
or a signed overflow ends the process; what lies beyond the arrays' allocations faults.
"""

import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from math import prod
from pathlib import Path

import numpy as np

from ._array import _put, ndarray
from ._machine import machine

SHIM = r"""
#include <string.h>
#define __global__ static
#define __device__
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))
typedef struct { unsigned int x, y, z; } dim3_;
static dim3_ gridDim, blockDim, blockIdx, threadIdx;
static inline float __uint_as_float(unsigned int bits) { float one; memcpy(&one, &bits, 4); return one; }
static inline unsigned int __float_as_uint(float one) { unsigned int bits; memcpy(&bits, &one, 4); return bits; }
"""

LAUNCHER = """
void launch_{name}(const unsigned int *grid, const unsigned int *block, void **arguments)
{{
    gridDim = (dim3_){{grid[0], grid[1], grid[2]}};
    blockDim = (dim3_){{block[0], block[1], block[2]}};
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
    for (threadIdx.z = 0; threadIdx.z < blockDim.z; threadIdx.z++)
    for (threadIdx.y = 0; threadIdx.y < blockDim.y; threadIdx.y++)
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++)
        {name}({arguments});
}}
"""

FLAGS = ("-O1", "-shared", "-fPIC", "-fno-strict-aliasing")
CHECKS = ("-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")

ELEMENTS = {
    "float": {"float32"},
    "double": {"float64"},
    "signed char": {"int8"},
    "short": {"int16"},
    "int": {"int32"},
    "long long": {"int64"},
    "unsigned char": {"uint8", "bool"},
    "unsigned short": {"uint16", "float16"},
    "unsigned int": {"uint32"},
    "unsigned long long": {"uint64"},
}
SCALARS = {
    "long long": (ctypes.c_longlong, (int, np.int64)),
    "int": (ctypes.c_int, (np.int32,)),
    "float": (ctypes.c_float, (np.float32,)),
    "double": (ctypes.c_double, (float, np.float64)),
}
MOST_THREADS, MOST_BLOCKS = 1024, 2**31 - 1


def compiler():
    """The C compiler, None if there is none."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


class RawModule:
    """CUDA source; it is compiled when a kernel is asked for, once in a process."""

    def __init__(self, *, code, options=(), backend="nvrtc"):
        self._code = code

    def get_function(self, name):
        if self._code not in machine.modules:
            machine.modules[self._code] = _compiled(self._code)
        library, signatures = machine.modules[self._code]
        if name not in signatures:
            raise RuntimeError(f"named symbol not found: {name} (there are: {', '.join(signatures)})")
        return RawKernel._of(name, getattr(library, f"launch_{name}"), signatures[name])


class RawKernel:
    """One kernel, called with blocks, threads of a block, and arguments; it is put into the current stream."""

    def __init__(self, code, name, options=()):
        self.__dict__ = RawModule(code=code, options=options).get_function(name).__dict__

    @classmethod
    def _of(cls, name, launch, parameters):
        one = cls.__new__(cls)
        one.name, one._launch, one._parameters = name, launch, parameters
        return one

    def __call__(self, grid, block, args, *, shared_mem=0):
        sides = [_sides(grid, "grid", MOST_BLOCKS), _sides(block, "block", MOST_THREADS)]
        if len(args) != len(self._parameters):
            raise TypeError(f"{self.name} takes {len(self._parameters)} arguments, not {len(args)}")
        values = [_argument(self.name, kind, one) for kind, one in zip(self._parameters, args, strict=True)]
        arrays = [one for one in args if isinstance(one, ndarray)]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(one) for one in values))
        _put("kernels", lambda: (self._launch(*sides, pointers), values), *arrays)


def _sides(given, what, most):
    if not isinstance(given, tuple) or not 1 <= len(given) <= 3 or not all(isinstance(one, int) for one in given):
        raise TypeError(f"the {what} is a tuple of one to three whole numbers, not {given!r}")
    if min(given) < 1 or prod(given) > most:
        raise RuntimeError(f"CUDA_ERROR_INVALID_VALUE: a {what} of {given}")
    return (ctypes.c_uint * 3)(*given, *[1] * (3 - len(given)))


def _argument(name, kind, value):
    if kind.endswith("*"):
        element = kind.rstrip("* ").removeprefix("const ")
        if not isinstance(value, ndarray):
            raise TypeError(f"{name} takes an array of the device for a {kind}, not a {type(value).__name__}")
        if value.dtype.name not in ELEMENTS[element] or not value.flags.c_contiguous:
            raise TypeError(f"{name} takes a contiguous array of {element}, not of {value.dtype}")
        return ctypes.c_void_p(value.data.ptr)
    ctype, types = SCALARS[kind]
    if type(value) not in types:
        raise TypeError(f"{name} takes a {kind}, which a {type(value).__name__} is not")
    return ctype(value)


def _compiled(code):
    """Return the compiled code, and of each kernel the types of its parameters."""
    signatures = {
        name: [re.sub(r"\s*\w+$", "", one.strip()) for one in parameters.split(",") if one.strip()]
        for name, parameters in re.findall(r"__global__\s+void\s+(\w+)\s*\(([^)]*)\)", code)
    }
    launchers = [
        LAUNCHER.format(name=name, arguments=", ".join(f"*({kind} *)arguments[{i}]" for i, kind in enumerate(kinds)))
        for name, kinds in signatures.items()
    ]
    return ctypes.CDLL(str(_library(SHIM + code + "".join(launchers)))), signatures


def _library(source):
    """Return the library that is built from `source`, by one process, and kept for all others and later runs."""
    with_compiler = compiler()
    if with_compiler is None:
        raise RuntimeError("the stand-in needs a C compiler for kernels: install gcc")
    command = [with_compiler, *FLAGS, *CHECKS]
    made_from = repr((command, os.stat(with_compiler).st_mtime_ns, source)).encode()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "collbench", "standin")
    kept = folder / f"{hashlib.blake2b(made_from, digest_size=16).hexdigest()}.so"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # ranks ask for the same at the same time
            if not kept.exists():
                _build(command, source, kept)
    return kept


def _build(command, source, kept):
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        text, new = Path(folder, "kernels.c"), Path(folder, kept.name)
        text.write_text(source)
        command = [*command, str(text), "-o", str(new)]
        ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
        if ended.returncode:
            raise RuntimeError(f"the source does not compile: {ended.stderr}")
        new.replace(kept)  # whole, or not there
