import pytest

from collectives import allreduce, broadcast


@pytest.mark.parametrize("value", ["0", "-2", "many", "1.5"])
def test_a_parameter_that_does_not_fit_is_refused(value):
    with pytest.raises(ValueError, match=f"chain:segments={value} is not a whole number of at least 1"):
        broadcast.find(f"chain:segments={value}")


def test_a_way_of_waiting_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="ring:waits=never is"):
        allreduce.find("ring:waits=never")
