"""CUDA kernels of our own, as text: combinations of any number of arrays, each read once, and half and 8-bit floats.

One template in the common part of C and CUDA C++, so that a C compiler can build it for a CPU, where its values are
tested. It needs no header. Floats of 16 and 8 bits are stored as integers of their width and computed in float32; each
combination is rounded to the nearest, ties to even, as NumPy and ml_dtypes do, or only the last one is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from string import Template
from typing import NamedTuple

from collectives.operations import OPERATIONS, Operation

PACK_NBYTES = 16
"""What one thread loads at once; the widest load that there is."""


class Type(NamedTuple):
    """How elements of a dtype are stored and computed, as C types; `compared` is what they are compared as."""

    stored: str
    itemsize: int
    computed: str
    compared: str


class SmallFloat(NamedTuple):
    """A float of at most 16 bits: exponent and mantissa bits, and its codes, without sign.

    `overflow` is the least float32 that becomes `beyond` rather than the greatest finite number. `infinite`: whether
    the greatest exponent stands for infinity and NaN; else its last code alone is NaN.
    """

    exponent: int
    mantissa: int
    overflow: float
    beyond: int
    nan: int
    infinite: bool = True

    @property
    def bias(self) -> int:
        """What is added to the exponent."""
        return (1 << (self.exponent - 1)) - 1

    @property
    def stored(self) -> str:
        """The C type of its codes."""
        return "unsigned short" if self.exponent + self.mantissa == 15 else "unsigned char"


SMALL_FLOATS = {
    "float16": SmallFloat(5, 10, 65520.0, 0x7C00, 0x7E00),
    "bfloat16": SmallFloat(8, 7, float("inf"), 0x7F80, 0x7FC0),
    "float8_e5m2": SmallFloat(5, 2, 61440.0, 0x7C, 0x7E),
    "float8_e4m3fn": SmallFloat(4, 3, 464.0 + 2.0**-15, 0x7F, 0x7F, infinite=False),
}
"""IEEE 754 half precision; its range with fewer digits (bfloat16); the 8-bit floats of Micikevicius et al. 2022, whose
e4m3 has no infinity. What overflows becomes infinite, or NaN where there is no infinity: nothing saturates, as in
ml_dtypes."""

_UNSIGNED, _LONG = "unsigned int", "unsigned long long"
TYPES = {
    "float32": Type("float", 4, "float", "float"),
    "float64": Type("double", 8, "double", "double"),
    "bool": Type("unsigned char", 1, _UNSIGNED, _UNSIGNED),
    "int8": Type("signed char", 1, _UNSIGNED, "int"),
    "int16": Type("short", 2, _UNSIGNED, "int"),
    "int32": Type("int", 4, _UNSIGNED, "int"),
    "int64": Type("long long", 8, _LONG, "long long"),
    "uint8": Type("unsigned char", 1, _UNSIGNED, _UNSIGNED),
    "uint16": Type("unsigned short", 2, _UNSIGNED, _UNSIGNED),
    "uint32": Type("unsigned int", 4, _UNSIGNED, _UNSIGNED),
    "uint64": Type("unsigned long long", 8, _LONG, _LONG),
    **{
        name: Type(one.stored, (1 + one.exponent + one.mantissa) // 8, "float", "float")
        for name, one in SMALL_FLOATS.items()
    },
}
"""The dtypes that kernels combine. Integers are computed unsigned, since only those wrap around in C."""

EXPRESSIONS = {
    "sum": "l + r",
    "prod": "l * r",
    "max": "l >= r || l != l ? l : r",  # of a NaN and a number the NaN, as NumPy has it
    "min": "l <= r || l != l ? l : r",
    "land": "l && r",
    "lor": "l || r",
    "lxor": "!l != !r",
    "band": "l & r",
    "bor": "l | r",
    "bxor": "l ^ r",
}
"""The operations, on what an element is computed as."""

_COMPARING = ("max", "min")

MOST_ARRAYS = 256
"""How many arrays one kernel takes; its arguments may take 4 KiB."""

_PLAIN = Template(
    """
DEVICE computed widen(element one) { return (computed)one; }
DEVICE element narrow(computed one) { return (element)one; }
"""
)

_BFLOAT16 = Template(
    """
DEVICE float widen(element code) { return __uint_as_float((unsigned int)code << 16); }

/* To the nearest, ties to even; what is too large overflows into infinity by itself. */
DEVICE element narrow(float value)
{
    unsigned int bits = __float_as_uint(value), rest = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
    if (rest > 0x7f800000u)
        return (element)(sign | ${nan}u);
    return (element)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
"""
)

_SMALL = Template(
    """
/* As a float32 whose exponent is too small by a constant, which a multiplication mends, denormals too. */
DEVICE float widen(element code)
{
    unsigned int sign = ((unsigned int)code & ${sign}u) << ${sign_shift}, rest = (unsigned int)code & ${all}u;
    if (rest ${special})
        return __uint_as_float(sign | 0x7f800000u | (rest ${special_mantissa}) << ${shift});
    return __uint_as_float(sign | __float_as_uint(__uint_as_float(rest << ${shift}) * ${scale}));
}

/* To the nearest, ties to even. Denormals are rounded by adding a number whose last digit is theirs. */
DEVICE element narrow(float value)
{
    unsigned int bits = __float_as_uint(value), rest = bits & 0x7fffffffu, sign = bits >> ${sign_shift} & ${sign}u;
    if (rest > 0x7f800000u)
        return (element)(sign | ${nan}u);
    if (rest >= ${overflow}u)
        return (element)(sign | ${beyond}u);
    if (rest < ${least_normal}u)
        return (element)(sign | (__float_as_uint(__uint_as_float(rest) + ${magic}) - ${magic_bits}u));
    rest += ${half}u + (rest >> ${shift} & 1u);
    return (element)(sign | (rest - ${rebias}u) >> ${shift});
}
"""
)

NOTHING = """
#ifdef __cplusplus
extern "C"
#endif
__global__ void nothing() {}
"""
"""Source with the kernel `nothing`, which takes what any kernel takes."""

_HEAD = Template(
    """
#define DEVICE static __device__ __forceinline__

typedef ${stored} element;
typedef ${computed} computed;
typedef struct __align__(16) { element at[${width}]; } pack;
"""
)

_COMBINE = Template(
    """
DEVICE computed combined(computed l, computed r) { return ${rounded}; }

#ifdef __cplusplus
extern "C"
#endif
__global__ void combine(${parameters},
    long long head, long long npacks, long long rest)
{
    long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x, stride = (long long)gridDim.x * blockDim.x;
    for (long long i = first; i < npacks; i += stride) {
${load_packs}
        #pragma unroll
        for (int k = 0; k < ${width}; k++) {
${combine_packs}
        }
${store_packs}
    }
    for (long long i = first; i < rest; i += stride) {
        long long at = i < head ? i : i + npacks * ${width};
${combine_rest}
    }
}
"""
)

_CONVERT = Template(
    """
#ifdef __cplusplus
extern "C"
#endif
__global__ void to_float32(const ${stored} *from, float *to, long long count)
{
    long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x, stride = (long long)gridDim.x * blockDim.x;
    for (long long i = first; i < count; i += stride)
        to[i] = widen(from[i]);
}

#ifdef __cplusplus
extern "C"
#endif
__global__ void from_float32(const float *from, ${stored} *to, long long count)
{
    long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x, stride = (long long)gridDim.x * blockDim.x;
    for (long long i = first; i < count; i += stride)
        to[i] = narrow(from[i]);
}
"""
)


def _float_bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _literal(value: float) -> str:
    """Return a float32 as C has it, exact."""
    return f"{value:.9g}f" if "." in f"{value:.9g}" or "e" in f"{value:.9g}" else f"{value:.9g}.0f"


def _conversions(dtype: str) -> str:
    """Return the functions `widen` and `narrow` of a dtype."""
    one = SMALL_FLOATS.get(dtype)
    if one is None:
        return _PLAIN.substitute()
    if dtype == "bfloat16":
        return _BFLOAT16.substitute(nan=hex(one.nan))
    shift, nbits = 23 - one.mantissa, one.exponent + one.mantissa
    greatest = (1 << nbits) - (1 << one.mantissa)  # the code of the greatest exponent alone
    magic = 2.0 ** (1 - one.bias - one.mantissa + 23)
    return _SMALL.substitute(
        sign=hex(1 << nbits),
        sign_shift=31 - nbits,
        all=hex((1 << nbits) - 1),
        shift=shift,
        special=f">= {greatest:#x}u" if one.infinite else f"== {one.nan:#x}u",
        special_mantissa=f"- {greatest:#x}u",
        scale=_literal(2.0 ** (127 - one.bias)),
        nan=hex(one.nan),
        beyond=hex(one.beyond),
        overflow=hex(_float_bits(one.overflow)),
        least_normal=hex(_float_bits(2.0 ** (1 - one.bias))),
        magic=_literal(magic),
        magic_bits=hex(_float_bits(magic)),
        half=hex((1 << (shift - 1)) - 1),
        rebias=hex((127 - one.bias) << 23),
    )


@dataclass(frozen=True)
class Combination:
    """What a kernel does: combine `noperands` arrays from left to right and write the result to `ntargets`.

    `rounded`: whether each combination of floats that are computed in a wider type is rounded to the dtype, as if it
    were written and read again; otherwise only the last one is.
    """

    operation: str
    dtype: str
    noperands: int
    ntargets: int = 1
    rounded: bool = True

    @property
    def width(self) -> int:
        """The elements that one thread loads at once."""
        return PACK_NBYTES // TYPES[self.dtype].itemsize


def applies(operation: Operation, dtype: str, narrays: int) -> bool:
    """Whether there is a kernel for this operation on so many arrays of this dtype, for which it must be defined.

    None for complex numbers, nor for operations of your own.
    """
    known = operation.name in EXPRESSIONS and operation is OPERATIONS[operation.name]
    return known and dtype in TYPES and narrays <= MOST_ARRAYS


@cache
def combination_source(what: Combination) -> str:
    """Return CUDA source with the kernel `combine`.

    Its arguments are the operands, the targets, and as `combining.Cut` has them the elements before the packs, the
    packs, and the elements that are in none. A target may be an operand.
    """
    types = TYPES[what.dtype]
    small = what.dtype in SMALL_FLOATS
    computed = types.compared if what.operation in _COMPARING else types.computed
    expression = EXPRESSIONS[what.operation]
    rounds = small and what.rounded and what.operation not in _COMPARING  # a maximum is one of the two as it is
    operands, targets = range(what.noperands), range(what.ntargets)
    parameters = [f"const {types.stored} *from{one}" for one in operands]
    parameters += [f"{types.stored} *into{one}" for one in targets]

    def combined(values: list[str]) -> str:
        total = f"widen({values[0]})"
        for one in values[1:]:
            total = f"combined({total}, widen({one}))"
        return f"narrow({total})"

    packs = [f"pack pack{one} = ((const pack *)(from{one} + head))[i];" for one in operands]
    stores = [f"((pack *)(into{one} + head))[i] = pack0;" for one in targets]
    rest = [f"element one = {combined([f'from{one}[at]' for one in operands])};"]
    rest += [f"into{one}[at] = one;" for one in targets]
    return (
        _HEAD.substitute(stored=types.stored, computed=computed, width=what.width)
        + _conversions(what.dtype)
        + _COMBINE.substitute(
            rounded=f"widen(narrow({expression}))" if rounds else expression,
            parameters=", ".join(parameters),
            width=what.width,
            load_packs=_lines(packs, 8),
            combine_packs=_lines([f"pack0.at[k] = {combined([f'pack{one}.at[k]' for one in operands])};"], 12),
            store_packs=_lines(stores, 8),
            combine_rest=_lines(rest, 8),
        )
    )


def _lines(lines: list[str], indent: int) -> str:
    return "\n".join(" " * indent + line for line in lines)


@cache
def conversion_source(dtype: str) -> str:
    """Return CUDA source with the kernels `to_float32` and `from_float32` of a small float: from, to, count."""
    types = TYPES[dtype]
    head = _HEAD.substitute(stored=types.stored, computed="float", width=PACK_NBYTES // types.itemsize)
    return head + _conversions(dtype) + _CONVERT.substitute(stored=types.stored)
