import ml_dtypes
import numpy as np
import pytest

from collectives import PRIMITIVES
from collectives.cutting import Options
from collectives.interpret import interpret
from collectives.layout import lay_out
from collectives.names import UnknownNameError
from collectives.operations import DTYPES, OPERATIONS, Operation, dtype_of, find_operation, stored


def test_every_operation_says_for_which_dtypes_it_is_defined():
    defined = {
        name: [one for one in DTYPES if operation.undefined_for(dtype_of(one)) is None]
        for name, operation in OPERATIONS.items()
    }
    integers = [one for one in DTYPES if "int" in one]
    floats = ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
    assert set(defined["sum"]) == {*integers, *floats, "complex64", "complex128"}
    assert set(defined["max"]) == {*integers, *floats}
    assert set(defined["lor"]) == set(defined["bxor"]) == {*integers, "bool"}


def test_a_sum_of_truth_values_is_refused_with_the_remedy():
    assert OPERATIONS["sum"].undefined_for(bool) == "sum is not defined for bool (truth value); use lor"


def test_a_maximum_of_complex_numbers_is_refused():
    assert OPERATIONS["max"].undefined_for(np.complex64) == "max is not defined for complex64 (complex)"


def test_an_unknown_operation_lists_those_there_are():
    with pytest.raises(UnknownNameError, match=r"no operation 'avg' \(there are: sum, prod, max"):
        find_operation("avg")


def test_an_unknown_dtype_lists_those_there_are():
    with pytest.raises(ValueError, match=r"no dtype 'float8' \(there are: float32"):
        dtype_of("float8")


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_are_found_by_name(name):
    assert dtype_of(name).name == name


def test_a_gpu_holds_what_it_does_not_know_as_whole_numbers_of_its_width():
    assert stored(dtype_of("bfloat16")) == np.uint16
    assert stored(dtype_of("float8_e5m2")) == stored(dtype_of("float8_e4m3fn")) == np.uint8
    assert stored(np.dtype(np.float16)) == np.float16


def reduced(name, values, op, algorithm="ring", dtype=None):
    """The all-reduce of `values`, one row a rank, with the layout of all ranks in one process."""
    values = np.asarray(values, dtype)
    primitive = PRIMITIVES["allreduce"]
    problem = primitive.problem(len(values), values.shape[1])
    chosen = primitive.find(algorithm)
    layouts = [lay_out(problem, chosen, rank, Options(piece=2, align=1)) for rank in range(len(values))]
    received = [np.zeros_like(values[0]) for _ in values]
    with np.errstate(all="ignore"):
        interpret(layouts, list(values.copy()), received, OPERATIONS[op].combine)
    for one in received[1:]:
        np.testing.assert_array_equal(one, received[0])
    return received[0]


ALGORITHMS = ("ring", "recursive_doubling", "rabenseifner", "spread", "reduce_broadcast")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_half_precision_overflows_to_infinity_alike(algorithm):
    result = reduced("allreduce", np.full((8, 3), 10000.0), "sum", algorithm, np.float16)
    assert np.isposinf(result).all()  # 80000 is above 65504


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("rank", [0, 2, 4])
@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_a_nan_of_any_rank_reaches_all(algorithm, rank, op):
    values = np.arange(10.0).reshape(5, 2)
    values[rank, 1] = np.nan
    result = reduced("allreduce", values, op, algorithm)
    assert np.isfinite(result[0])
    assert np.isnan(result[1])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_integers_wrap_around(algorithm):
    assert reduced("allreduce", np.full((3, 2), 100), "sum", algorithm, np.uint8).tolist() == [44, 44]
    assert reduced("allreduce", np.full((3, 2), 100), "sum", algorithm, np.int8).tolist() == [44, 44]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_minimum_of_negative_numbers_is_negative(algorithm):
    values = [[rank, -rank] for rank in range(5)]
    assert reduced("allreduce", values, "min", algorithm, np.int64).tolist() == [0, -4]


@pytest.mark.parametrize("op", ["land", "lor", "lxor", "band", "bor", "bxor"])
def test_logical_and_bitwise_operations_equal_numpy(op):
    values = np.array([[0, 1, 6, 7], [0, 3, 5, 0], [0, 1, 4, 9]])
    expected = values[0]
    for row in values[1:]:
        expected = OPERATIONS[op].combine(expected, row)
    assert reduced("allreduce", values, op, dtype=np.int32).tolist() == expected.astype(np.int32).tolist()


def test_logical_or_of_truth_values():
    assert reduced("allreduce", [[True, False], [False, False]], "lor", dtype=bool).tolist() == [True, False]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_floats_of_ml_dtypes_are_combined_by_numpy_functions(dtype):
    result = reduced("allreduce", np.full((4, 3), 4.0), "sum", dtype=dtype)
    assert result.astype(float).tolist() == [16.0] * 3


def test_an_operation_of_your_own_is_found_as_it_is():
    mine = Operation("mine", np.add)
    assert find_operation(mine) is mine
    assert mine.mpi_name is None
