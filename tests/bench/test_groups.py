import pytest

from bench.groups import Split, parse_groups
from bench.options import parse
from bench.rows import ROWS_FILE, read_rows
from bench.usage import UsageError

ALGORITHMS = {"allreduce": ("native", "ring"), "reduce": ("native", "binomial")}


def members(split, nranks):
    return [[rank for rank in range(nranks) if split.group_of(rank) == group] for group in range(split.ngroups(nranks))]


def test_ranks_are_split_as_nccl_tests_does():
    mod, div = parse_groups("mod 4|div 4", 8)
    assert members(mod, 8) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert members(div, 8) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (mod.stride, div.stride) == (4, 1)
    assert (str(mod), str(div)) == ("mod 4", "div 4")


def test_spelling_is_free_and_what_is_said_twice_counts_once():
    assert parse_groups("MOD4 | mod 4", 4) == (Split("mod", 4),)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--groups", "half"], "'half' for --groups (write mod N or div N"),
        (["--groups", "mod 0"], "'mod 0' for --groups"),
        (["--groups", "mod 3"], "8 ranks do not split evenly: 8 = 3·2 + 2"),
        (["--groups", "div 16"], "8 ranks do not split evenly: 8 = 16·0 + 8"),
        (["--groups", "div 4", "-r", "4"], "'4' for --root (a group of --groups has ranks 0 to 3)"),
        (["--groups", "div 4", "--resume", "DIR"], "'DIR' for --resume"),
        (["--groups", "div 4", "--samples"], "for --samples"),
        (["--groups", "div 4", "--strategy", "tensor"], "'tensor' for --strategy"),
    ],
)
def test_bad_input_names_option_value_and_remedy(words, says):
    with pytest.raises(UsageError) as error:
        parse(words, 8, ALGORITHMS)
    assert says in str(error.value)


@pytest.mark.launch
def test_one_group_alone_and_all_at_once_are_measured_and_named_in_the_rows(launch, tmp_path):
    words = ["allreduce", "reduce", "-b", "1K", "-e", "1K", "-n", "5", "-a", "ring,binomial,window", "--no-plots"]
    result = launch(4, "-m", "bench.sweep", *words, "--groups", "mod 2|div 4", "-o", tmp_path / "run")
    assert result.status == 0, result.err
    rows, notices = read_rows(tmp_path / "run" / ROWS_FILE)
    assert notices == []
    seen = {(row["nranks"], row["ngroups"], row["stride"]) for row in rows}
    assert seen == {(2, 1, 2), (2, 2, 2), (4, 1, 1)}
    assert all(row["wrong"] == 0 for row in rows if row["status"] == "ok")
    for setting in seen:
        algorithms = {
            (row["primitive"], row["algorithm"])
            for row in rows
            if (row["nranks"], row["ngroups"], row["stride"]) == setting and row["status"] == "ok"
        }
        assert {("allreduce", "ring"), ("allreduce", "native"), ("reduce", "binomial")} <= algorithms
    assert "mod 2: one group of 2 ranks, neighbours 2 apart, the others idle" in result.out
    assert "mod 2: 2 groups of 2 ranks, neighbours 2 apart, all at the same time" in result.out


@pytest.mark.launch
def test_what_a_group_cannot_do_is_skipped_on_all_ranks(launch, tmp_path):
    words = ["allreduce", "-b", "1K", "-e", "1K", "-n", "5", "-a", "recursive_doubling,bine", "--no-plots", "-q"]
    result = launch(6, "-m", "bench.sweep", *words, "-d", "bfloat16", "--groups", "mod 2", "-o", tmp_path / "run")
    assert result.status == 0, result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    assert {row["ngroups"] for row in rows} == {1, 2}
    assert all(row["reason"] for row in rows if row["status"] == "skipped")
    assert any(row["status"] == "skipped" for row in rows)
