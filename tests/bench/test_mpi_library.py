"""Which of the library's own algorithms compete; the library is made up, in the manner of MPICH."""

from types import SimpleNamespace

import pytest

from bench.contenders import labels
from bench.library import NOTHING, OwnAlgorithms, name_of, own_algorithms, told
from bench.options import parse
from bench.usage import UsageError
from collectives import PRIMITIVES
from collectives.choices import Mpich
from collectives.mpit import NoVariable

pytestmark = pytest.mark.mpi

ALGORITHMS = """
auto - Internal algorithm selection
binomial - Force binomial
knomial_of_its_own - Force what we have no name for
tree - Force tree
smp - Force smp
"""


class Tool:
    """What choices need of a tool interface."""

    flavour = "mpich"

    def __init__(self):
        texts = {
            "MPIR_CVAR_BCAST_INTRA_ALGORITHM": ALGORITHMS,
            "MPIR_CVAR_BCAST_TREE_TYPE": "kary - k-ary\nknomial_1 - k-nomial",
            "MPIR_CVAR_BCAST_TREE_KVAL": "the k",
            "MPIR_CVAR_DEVICE_COLLECTIVES": "all - yes\nnone - no",
            "MPIR_CVAR_COLLECTIVE_FALLBACK": "error - fail\nsilent - do not",
        }
        self.variables = {
            name: SimpleNamespace(name=name, kind="int", description=text) for name, text in texts.items()
        }

    def variable(self, name):
        try:
            return self.variables[name]
        except KeyError:
            raise NoVariable(name) from None

    def read(self, name):
        return 2


@pytest.fixture
def own():
    return OwnAlgorithms(Mpich(Tool()))


def chosen(line, own, primitive="broadcast"):
    known = {name: ["native", *one.algorithms, *own.names(one)] for name, one in PRIMITIVES.items()}
    return labels(PRIMITIVES[primitive], parse(line.split(), 4, known), own=own)


def test_names_are_the_librarys_and_one_for_all(own):
    assert own.names(PRIMITIVES["broadcast"]) == [
        *("native:binomial", "native:knomial_of_its_own", "native:tree", "native:smp"),
        "native:all",
    ]
    assert own.names(PRIMITIVES["allreduce"]) == []


def test_ours_of_the_same_name_comes_along(own):
    assert chosen("-a native:binomial", own) == ["native", "native:binomial", "binomial"]
    assert chosen("-a native:knomial_of_its_own,ring", own) == ["native", "native:knomial_of_its_own"]
    assert chosen("-a native:tree", own) == ["native", "native:tree", "binary_tree:segments=1"]


def test_all_are_all_that_it_lists(own):
    forced = [name for name in chosen("-a native:all", own) if name.startswith("native:")]
    assert forced == own.names(PRIMITIVES["broadcast"])[:-1]


def test_a_primitive_without_choices_has_its_default(own):
    assert chosen("-a native:all,native:tree", own, "allreduce") == ["native"]


def test_a_parameter_that_ours_does_not_have_leaves_ours_out(own):
    assert chosen("-a native:tree:radix=64K", own) == ["native", "native:tree:radix=65536"]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("native:tree:colour=3", "native:tree of Bcast has no parameter 'colour' (it has: tree, radix)"),
        ("native:tree:radix=0", "at least 1"),
        ("native:tree:tree=oak", "has no value 'oak' (it has: kary, knomial_1)"),
        ("native:tree:3", "write it as name=value"),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused_with_the_reason(own, word, says):
    with pytest.raises(UsageError) as error:
        chosen(f"-a {word}", own)
    assert says in str(error.value)


def test_all_of_them_take_no_parameters(own):
    with pytest.raises(UsageError, match="native:all is several"):
        chosen("-a native:all:radix=4", own)


def test_a_library_that_cannot_be_told_gives_its_default_only():
    unknown = OwnAlgorithms(refusal="libfoo.so is neither MPICH nor Open MPI")
    assert chosen("-a native:all,native:ring,binomial", unknown) == ["native", "binomial"]


def test_the_library_is_not_asked_unless_a_word_names_it():
    assert own_algorithms(["allreduce", "-a", "native,ring"]) is NOTHING


def test_a_name_ends_before_the_parameters():
    assert name_of("native:knomial:radix=4") == "native:knomial"
    assert name_of("chain:segments=2") == "chain"
    assert name_of("native") == "native"


def test_only_what_the_library_was_told_to_run_has_columns_of_its_own():
    assert told("ring", []) == told("native", []) == {}
    assert told("native:ring", []) == {"requested": "native:ring"}
