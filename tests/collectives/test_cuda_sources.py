"""Every CUDA source of ours is compiled by NVIDIA's own compiler, which needs no GPU (the extra `nvrtc`)."""

import ctypes
from importlib.metadata import PackageNotFoundError, files
from itertools import product

import pytest

from collectives.kernels import (
    EXPRESSIONS,
    NOTHING,
    SMALL_FLOATS,
    TYPES,
    Combination,
    combination_source,
    conversion_source,
)

PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
ARCHITECTURES = (70, 80, 90)
"""Volta (of which CUDA 13 knows nothing any more), Ampere, Hopper; and the oldest and the newest that there is."""


class Compiler:
    """libnvrtc, by its documented C interface."""

    def __init__(self, library):
        self.library = library
        count = ctypes.c_int()
        self.checked("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        supported = (ctypes.c_int * count.value)()
        self.checked("nvrtcGetSupportedArchs", supported)
        wanted = {one for one in ARCHITECTURES if one in supported}
        self.architectures = sorted({min(supported), *wanted, max(supported)})

    def checked(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        assert status == 0, f"{name}: status {status}"

    def text(self, kind, program):
        length = ctypes.c_size_t()
        self.checked(f"nvrtcGet{kind}Size", program, ctypes.byref(length))
        text = ctypes.create_string_buffer(length.value)
        self.checked(f"nvrtcGet{kind}", program, text)
        return text.value.decode()

    def compiled(self, source, architecture):
        """PTX of `source`, the code that a GPU's driver turns into its own; or AssertionError with what is wrong."""
        program = ctypes.c_void_p()
        self.checked("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"source.cu", 0, None, None)
        option = (ctypes.c_char_p * 1)(f"--gpu-architecture=compute_{architecture}".encode())
        try:
            status = self.library.nvrtcCompileProgram(program, 1, option)
            assert status == 0, self.text("ProgramLog", program)
            return self.text("PTX", program)
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))


@pytest.fixture(scope="module")
def nvrtc():
    for package in PACKAGES:
        try:
            parts = files(package) or ()
        except PackageNotFoundError:
            continue
        found = [one.locate() for one in parts if one.name.startswith("libnvrtc.so")]
        if found:
            return Compiler(ctypes.CDLL(str(found[0])))
    pytest.skip(f"none of {', '.join(PACKAGES)} is installed: make venv EXTRA=nvrtc")


@pytest.mark.parametrize("dtype", TYPES)
def test_combinations_compile_for_every_architecture(nvrtc, dtype):
    for architecture, rounded in product(nvrtc.architectures, {True, dtype not in SMALL_FLOATS}):
        ptx = nvrtc.compiled(combination_source(Combination("sum", dtype, 8, 8, rounded)), architecture)
        assert ".entry combine(" in ptx
        assert "ld.global.v" in ptx  # packs are loaded at once
        assert ".local" not in ptx  # and stay in registers


@pytest.mark.parametrize("operation", EXPRESSIONS)
def test_every_operation_compiles(nvrtc, operation):
    for dtype, types in TYPES.items():
        floats = types.computed in ("float", "double")
        if not floats or operation in ("sum", "prod", "max", "min"):
            for rounded in {True, dtype not in SMALL_FLOATS}:
                source = combination_source(Combination(operation, dtype, 3, 2, rounded))
                assert ".entry combine(" in nvrtc.compiled(source, nvrtc.architectures[0])


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_conversions_compile_for_every_architecture(nvrtc, dtype):
    for architecture in nvrtc.architectures:
        ptx = nvrtc.compiled(conversion_source(dtype), architecture)
        assert ".entry to_float32(" in ptx
        assert ".entry from_float32(" in ptx


def test_a_kernel_that_does_nothing_compiles(nvrtc):
    assert ".entry nothing(" in nvrtc.compiled(NOTHING, nvrtc.architectures[0])


def test_a_broken_source_is_refused_with_what_is_wrong(nvrtc):
    source = combination_source(Combination("sum", "float32", 2))
    with pytest.raises(AssertionError, match='identifier "fro0" is undefined'):
        nvrtc.compiled(source.replace("(from0 + head)", "(fro0 + head)"), nvrtc.architectures[0])
