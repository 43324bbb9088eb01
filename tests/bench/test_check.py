"""The data that results are checked with."""

from itertools import accumulate

import numpy as np
import pytest

from bench.check import FRACTION_BITS, PERIOD, Checked, fill
from collectives import allreduce
from collectives.operations import FLOAT8, OPERATIONS, SMALL, dtype_of


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("nranks", [8, 88])
def test_sums_of_8_bit_floats_are_exact_in_any_order(dtype, nranks):
    inputs = [fill(PERIOD, rank, dtype, "sum") for rank in range(nranks)]
    exact = sum(one.astype(int) for one in inputs)
    with_signs = np.array(inputs).astype(int)
    worst = np.maximum((with_signs > 0).sum(0), (with_signs < 0).sum(0)).max()  # of all sums of some of them
    assert worst <= 8  # up to which e5m2 has every whole number
    for order in (inputs, sorted(inputs, key=lambda one: one.tobytes())):
        total = list(accumulate(order, OPERATIONS["sum"].combine))[-1]
        np.testing.assert_array_equal(total.astype(int), exact)
    assert all(np.count_nonzero(one) > PERIOD // 6 for one in inputs)
    assert len({one.tobytes() for one in inputs}) == min(nranks, 11)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_products_of_8_bit_floats_are_exact(dtype):
    inputs = [fill(PERIOD, rank, dtype, "prod") for rank in range(88)]
    total = list(accumulate(inputs, OPERATIONS["prod"].combine))[-1]
    np.testing.assert_array_equal(total.astype(int), np.prod([one.astype(int) for one in inputs], 0))


@pytest.mark.parametrize("dtype", [*SMALL, "float32"])
def test_random_floats_lie_between_1_and_2(dtype):
    checked = Checked(allreduce.problem(2, 5000), 0, dtype, "sum")
    checked.randomise(3)
    values = checked.send.get().astype(np.float64)
    assert ((values >= 1) & (values < 2)).all()
    assert len(np.unique(values)) > 0.6 * min(1 << FRACTION_BITS[dtype], 5000)
    assert checked.send.get().dtype == dtype_of(dtype)
