import pytest

from collectives import allreduce, broadcast
from collectives.names import UnknownNameError
from collectives.registry import find


def test_names_that_do_not_exist_are_answered_with_those_that_do():
    with pytest.raises(UnknownNameError, match=r"allreduce has no algorithm 'rink' \(it has: .*ring"):
        allreduce.find("rink")
    with pytest.raises(UnknownNameError, match=r"has no parameter 'parts' \(it has: segments"):
        broadcast.find("chain:parts=3")
    with pytest.raises(UnknownNameError, match="'segments' is not a parameter; write it as name=value"):
        broadcast.find("chain:segments")
    with pytest.raises(UnknownNameError, match=r"there is no primitive 'allredux' \(there are: broadcast"):
        find("allredux")
