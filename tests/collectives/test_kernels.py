"""Kernels of our own: their values, on the stand-in that builds the very source for a CPU, or on a GPU where one is."""

import ml_dtypes
import numpy as np
import pytest

from collectives.combining import BLOCKS_PER_PROCESSOR, THREADS, Cut, combiner, cut, launch_shape
from collectives.devices import kernel
from collectives.kernels import (
    MOST_ARRAYS,
    PACK_NBYTES,
    SMALL_FLOATS,
    TYPES,
    Combination,
    applies,
    combination_source,
    conversion_source,
)
from collectives.operations import OPERATIONS, Operation

DTYPES = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in TYPES}
STORED = {"bfloat16": np.dtype(np.uint16), "float8_e4m3fn": np.dtype(np.uint8), "float8_e5m2": np.dtype(np.uint8)}
DEFINED = [
    (operation, dtype)
    for operation in OPERATIONS.values()
    for dtype in TYPES
    if operation.undefined_for(np.uint8 if "int" in dtype else np.bool_ if dtype == "bool" else np.float32) is None
]


def inputs(dtype, count, narrays):
    """Arrays of all kinds of values: any bits, and for floats infinities, NaNs, zeros of both signs and denormals."""
    random = np.random.default_rng(count)
    if dtype == "bool":
        return [random.integers(0, 2, count).astype(bool) for _ in range(narrays)]
    bits = random.integers(0, 256, (narrays, count * DTYPES[dtype].itemsize), np.uint8)
    return [one.view(DTYPES[dtype]) for one in bits]


def one_after_the_other(operation, arrays):
    total, *others = (one.copy() for one in arrays)
    with np.errstate(all="ignore"):
        for one in others:
            operation.combine(total, one, out=total)
    return total


def on_device(gpu, array, place=0):
    """A copy of `array` on the GPU, `place` elements behind an aligned address."""
    array = array.view(STORED.get(array.dtype.name, array.dtype))
    block = gpu.zeros(array.size + place, array.dtype)
    block[place:].set(array)
    return block[place:]


def on_host(array, dtype):
    return array.get().view(DTYPES[dtype])


def is_nan(array):
    with np.errstate(all="ignore"):  # a signalling NaN does when it is converted
        return np.isnan(array.astype(np.float64))


def assert_same_bits(one, other):
    """Whether arrays are equal bit by bit, but for which NaN a NaN is."""
    if one.dtype.kind in "fV":
        nan = is_nan(one)
        np.testing.assert_array_equal(nan, is_nan(other))
        one, other = one[~nan], other[~nan]
    np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


def same_values(one, other):
    """As `assert_same_bits`, with zeros of either sign alike: of two zeros any is the greatest."""
    if one.dtype.kind in "fV":
        with np.errstate(all="ignore"):
            one, other = one.astype(np.float64) + 0.0, other.astype(np.float64) + 0.0
    assert_same_bits(one, other)


@pytest.mark.parametrize(("operation", "dtype"), DEFINED, ids=lambda one: getattr(one, "name", one))
def test_a_fused_combination_is_what_one_after_the_other_gives(kernels, operation, dtype):
    same = same_values if operation.name in ("max", "min") else assert_same_bits
    turn = DEFINED.index((operation, dtype)) % 3
    for narrays, ntargets, count in ((5, 3, 1111), ((2, 1, 4000), (1, 2, 70), (3, 1, 1))[turn]):
        arrays = inputs(dtype, count, narrays)
        operands = [on_device(kernels, one) for one in arrays]
        targets = [on_device(kernels, np.zeros_like(arrays[0])) for _ in range(ntargets)]
        combiner(Combination(operation.name, dtype, narrays, ntargets), operands, targets)()
        for one in targets:
            same(on_host(one, dtype), one_after_the_other(operation, arrays))
        for one, before in zip(operands, arrays, strict=True):
            assert_same_bits(on_host(one, dtype), before)


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_only_the_last_sum_is_rounded_on_request(kernels, dtype):
    arrays = [np.resize(one, 3000) for one in inputs(dtype, 1000, 4)]
    operands = [on_device(kernels, one) for one in arrays]
    target = on_device(kernels, np.zeros_like(arrays[0]))
    combiner(Combination("sum", dtype, 4, rounded=False), operands, [target])()
    with np.errstate(all="ignore"):
        exact = one_after_the_other(OPERATIONS["sum"], [one.astype(np.float32) for one in arrays])
        assert_same_bits(on_host(target, dtype), exact.astype(DTYPES[dtype]))
        rounded = one_after_the_other(OPERATIONS["sum"], arrays)
    assert (on_host(target, dtype) != rounded).any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("place", range(5))
def test_any_alignment_is_right_and_what_lies_around_is_left_alone(kernels, dtype, place):
    for count in (1, 7, 33, 1000):
        arrays = inputs(dtype, count, 3)
        for places in ((place, place, place), (place, 0, place), (0, 0, place)):
            first, second, into = (on_device(kernels, *one) for one in zip(arrays, places, strict=True))
            block = on_device(kernels, np.zeros(count + 64, DTYPES[dtype]))
            target = block[16 + places[2] :][:count]
            combiner(Combination("sum", dtype, 3, 2), [first, second, into], [target, into])()
            wanted = one_after_the_other(OPERATIONS["sum"], arrays)
            assert_same_bits(on_host(into, dtype), wanted)
            around = on_host(block, dtype)
            assert_same_bits(around[16 + places[2] :][:count], wanted)
            assert not around[: 16 + places[2]].any()
            assert not around[16 + places[2] + count :].any()


def test_a_target_may_be_an_operand(kernels):
    arrays = inputs("int32", 999, 3)
    operands = [on_device(kernels, one) for one in arrays]
    combiner(Combination("sum", "int32", 3, 2), operands, [operands[2], operands[0]])()
    for one in (operands[2], operands[0]):
        np.testing.assert_array_equal(one.get(), one_after_the_other(OPERATIONS["sum"], arrays))


def test_nothing_is_launched_for_nothing(kernels):
    nothing = kernels.zeros(0, np.float32)
    combiner(Combination("sum", "float32", 2), [nothing, nothing], [nothing])()


# Small floats


def converted(gpu, dtype, name, values):
    made = np.float32 if name == "to_float32" else DTYPES[dtype]
    source = on_device(gpu, values)
    target = on_device(gpu, np.zeros(values.size, made))
    kernel(conversion_source(dtype), name)((7,), (64,), (source, target, values.size))
    return target.get().view(made)


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_every_code_becomes_the_float32_that_it_is(kernels, dtype):
    width = DTYPES[dtype].itemsize
    codes = np.arange(1 << 8 * width).astype(f"u{width}").view(DTYPES[dtype])
    assert_same_bits(converted(kernels, dtype, "to_float32", codes), codes.astype(np.float32))


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_every_float32_is_rounded_as_ml_dtypes_does(kernels, dtype):
    one = SMALL_FLOATS[dtype]
    random = np.random.default_rng(1)
    width = DTYPES[dtype].itemsize
    codes = np.arange(1 << 8 * width).astype(f"u{width}").view(DTYPES[dtype]).astype(np.float32)
    with np.errstate(all="ignore"):
        ties = (codes[:-1].astype(np.float64) + codes[1:]).astype(np.float32) / np.float32(2)  # and both sides of them
        near = [np.nextafter(ties, np.float32(side)) for side in (-np.inf, np.inf)]
        edges = np.array([one.overflow, 1e-45, 0.0, -0.0, np.inf, np.nan, 3e38, 2.0 ** (1 - one.bias)], np.float32)
        edges = np.concatenate([edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(np.inf))])
        anything = random.integers(0, 1 << 32, 1 << 20, np.uint32).view(np.float32)
        middling = (random.standard_normal(1 << 18) * 2.0 ** random.integers(-20, 20, 1 << 18)).astype(np.float32)
        samples = np.concatenate([codes, ties, *near, edges, -edges, anything, middling])
        wanted = samples.astype(DTYPES[dtype])
    assert_same_bits(converted(kernels, dtype, "from_float32", samples), wanted)


# Which kernels there are, and how they are launched


def test_there_are_kernels_for_named_operations_on_real_numbers():
    assert applies(OPERATIONS["sum"], "float32", 16)
    assert applies(OPERATIONS["bxor"], "bool", 2)
    assert not applies(OPERATIONS["sum"], "complex64", 2)
    assert not applies(Operation("sum", np.add), "float32", 2)  # one's own of that name
    assert not applies(Operation("mine", np.add), "float32", 2)
    assert not applies(OPERATIONS["sum"], "float32", MOST_ARRAYS + 1)


def test_packs_begin_where_all_arrays_are_aligned():
    assert cut([256, 512], 4, 100) == Cut(0, 25, 0)
    assert cut([256, 512], 4, 103) == Cut(0, 25, 3)
    assert cut([264, 520], 4, 103) == Cut(2, 25, 3)
    assert cut([264, 516], 4, 103) == Cut(103, 0, 103)  # aligned differently
    assert cut([257, 513], 1, 40) == Cut(15, 1, 24)
    assert cut([258, 514], 4, 40) == Cut(40, 0, 40)  # to no element
    assert cut([260], 4, 2) == Cut(2, 0, 2)
    assert cut([256], 8, 0) == Cut(0, 0, 0)


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_every_element_is_in_a_pack_or_in_the_rest(itemsize):
    width = PACK_NBYTES // itemsize
    for start in range(0, 48, itemsize):
        for count in range(70):
            head, npacks, rest = cut([start, start + 160], itemsize, count)
            assert head <= rest
            assert npacks * width + rest == count
            assert not npacks or (start + head * itemsize) % PACK_NBYTES == 0


def test_a_launch_has_a_thread_for_each_item_up_to_what_the_gpu_holds():
    assert launch_shape(0, 132) == (1, THREADS)
    assert launch_shape(1, 132) == (1, THREADS)
    assert launch_shape(THREADS + 1, 132) == (2, THREADS)
    assert launch_shape(1 << 30, 132) == (132 * BLOCKS_PER_PROCESSOR, THREADS)


def test_a_source_needs_no_header():
    assert "#include" not in combination_source(Combination("sum", "float16", 8, 8))
