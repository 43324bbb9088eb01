import dataclasses
import pickle
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from bench import __version__
from bench.options import Options, check_output, default_output, parse, parse_or_exit
from bench.strategy_options import SHORT
from bench.usage import UsageError

ALGORITHMS = {
    "broadcast": ("native", "binomial", "chain"),
    "allreduce": ("native", "native_persistent", "ring", "spread"),
    "allgather": ("native", "ring", "bruck"),
    "sendrecv_pingpong": ("native", "direct"),
    "sendrecv_stream": ("native", "direct", "segmented"),
}


def parsed(line, nranks=4):
    return parse(line.split(), nranks, ALGORITHMS)


def refusal(line, nranks=4):
    with pytest.raises(UsageError) as error:
        parsed(line, nranks)
    return str(error.value)


def test_defaults():
    assert parsed("") == Options(
        show="sweep",
        primitives=tuple(ALGORITHMS),
        min_bytes=8,
        max_bytes=16 << 20,
        factor=8.0,
        algorithms=(),
        dtypes=("float32",),
        ops=("sum",),
        root=0,
        accumulate=None,
        in_place=(False,),
        memories=("plain",),
        ppn=None,
        iters=50,
        warmup=3,
        max_seconds=0.5,
        precision=0.02,
        cadence="isolated",
        sync="barrier",
        rotate=1,
        hang_seconds=300.0,
        check=True,
        memory_limit=None,
        output=None,
        resume=None,
        samples=False,
        device="auto",
        transport="auto",
        plots=True,
        quiet=False,
        strategies=SHORT,
        groups=(),
    )


def test_every_option_has_its_place():
    line = (
        "allreduce -b 1K broadcast -e 1.5M -f 2.5 -a ring,binomial -d float64,uint8 --op max,min -r 3 -n 7 -w 0 "
        "--max-seconds 0.5 -c 0 --memory-limit 1G -o out --device cpu --transport staged --no-plots -q --list "
        "--accumulate float32 --in-place both --memory shared,plain --ppn 2 "
        "--precision 0.1 --cadence streaming --sync deadline --rotate 4 --hang-seconds 9.5 --samples"
    )
    assert parsed(line) == Options(
        show="list",
        primitives=("allreduce", "broadcast"),
        min_bytes=1024,
        max_bytes=1572864,
        factor=2.5,
        algorithms=("ring", "binomial"),
        dtypes=("float64", "uint8"),
        ops=("max", "min"),
        root=3,
        accumulate="float32",
        in_place=(False, True),
        memories=("shared", "plain"),
        ppn=2,
        iters=7,
        warmup=0,
        max_seconds=0.5,
        precision=0.1,
        cadence="streaming",
        sync="deadline",
        rotate=4,
        hang_seconds=9.5,
        check=False,
        memory_limit=1 << 30,
        output=Path("out"),
        resume=None,
        samples=True,
        device="cpu",
        transport="staged",
        plots=False,
        quiet=True,
        strategies=None,
        groups=(),
    )


def test_long_names_mean_the_same():
    short = "-b 16 -e 32 -f 2 -a ring -d int32 -r 1 -n 2 -w 1 -c 0 -o x -q"
    long = (
        "--min-bytes 16 --max-bytes 32 --factor 2 --algorithm ring --dtype int32 --root 1 --iters 2 --warmup 1 "
        "--check 0 --output x --quiet"
    )
    assert parsed(short) == parsed(long)


def test_the_sizes_are_the_sweep():
    assert parsed("-b 8 -e 100 -f 2").sizes == (8, 16, 32, 64)


def test_options_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        parsed("").root = 1


def test_an_algorithm_carries_its_parameters():
    assert parsed("-a ring,chain:segments=16:waits=data").algorithms == ("ring", "chain:segments=16:waits=data")


def test_a_comma_goes_on_with_parameters_where_no_name_follows():
    assert parsed("-a chain:segments=16,waits=data,ring").algorithms == ("chain:segments=16:waits=data", "ring")


def test_a_comma_before_a_name_with_parameters_begins_another_algorithm():
    assert parsed("-a chain:segments=16,ring:waits=data").algorithms == ("chain:segments=16", "ring:waits=data")


def test_values_between_bars_are_one_algorithm_each():
    assert parsed("-a chain:segments=2|4:waits=round|data,ring").algorithms == (
        "chain:segments=2:waits=round",
        "chain:segments=2:waits=data",
        "chain:segments=4:waits=round",
        "chain:segments=4:waits=data",
        "ring",
    )


def test_the_same_algorithm_twice_is_measured_once():
    assert parsed("-a chain:segments=2|4,chain:segments=4,ring,ring").algorithms == (
        "chain:segments=2",
        "chain:segments=4",
        "ring",
    )


def test_a_family_stands_for_its_members():
    assert parsed("sendrecv").primitives == ("sendrecv_pingpong", "sendrecv_stream")
    assert parsed("sendrecv_stream allreduce").primitives == ("sendrecv_stream", "allreduce")
    assert parsed("sendrecv_stream sendrecv").primitives == ("sendrecv_stream", "sendrecv_pingpong")


def test_the_beginning_of_a_name_is_no_family():
    assert "unknown primitive 'allre' for PRIMITIVE" in refusal("allre")


def test_variants_are_swept_only_when_named():
    algorithms = {"allgather": ("native",), "allgatherv": ("native",), "barrier": ("native",)}
    assert parse([], 4, algorithms).primitives == ("allgather", "barrier")
    assert parse(["allgatherv"], 4, algorithms).primitives == ("allgatherv",)
    assert parse(["all"], 4, algorithms).primitives == ("allgather", "allgatherv", "barrier")


def test_what_is_named_twice_is_measured_once():
    options = parsed("allreduce allreduce -d int32,float32,int32")
    assert (options.primitives, options.dtypes) == (("allreduce",), ("int32", "float32"))


def test_an_algorithm_of_one_chosen_primitive_is_enough():
    assert parsed("allreduce allgather -a bruck").algorithms == ("bruck",)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "all-reduce",
            "unknown primitive 'all-reduce' for PRIMITIVE (did you mean allreduce? known: broadcast, allred",
        ),
        ("-a rnig", "unknown algorithm 'rnig' for --algorithm (did you mean ring? known: native, binomial, chain,"),
        ("-a bruck allreduce", "'bruck' for --algorithm (known: native, native_persistent, ring, spread, all)"),
        ("-a ring,", "unknown algorithm '' for --algorithm"),
        ("-d float8", "unknown dtype 'float8' for --dtype (did you mean float64? known: float32, float64, float16"),
        ("--in-place maybe", "unknown choice 'maybe' for --in-place (known: no, yes, both)"),
        ("--memory pinned", "unknown memory 'pinned' for --memory (known: plain, registered, shared)"),
        ("--memory plain,", "unknown memory '' for --memory"),
        ("--ppn 0", "invalid value '0' for --ppn (must be 1 to 4 ranks a node)"),
        ("--ppn 5", "invalid value '5' for --ppn (must be 1 to 4 ranks a node)"),
        ("--strategy all --memory registered", "'registered' for --memory (a replay of strategies has plain memory"),
        ("--strategy all --ppn 2", "'2' for --ppn (a replay of strategies has plain memory and nodes as they are"),
        ("--ppn two", "invalid value 'two' for --ppn"),
        ("--accumulate int32", "unknown dtype 'int32' for --accumulate (known: float32)"),
        ("--op avg", "unknown op 'avg' for --op (known: sum, prod, max, min, land"),
        ("-b 12X", "invalid size '12X' for --min-bytes (examples: 8, 1K, 64M, 4G)"),
        ("-e x", "invalid size 'x' for --max-bytes (examples: 8, 1K, 64M, 4G)"),
        ("-b 1M -e 1K", "invalid value '1M' for --min-bytes (above --max-bytes 1K: lower it, or raise --max-bytes)"),
        ("-b 0", "invalid size '0' for --min-bytes (a sweep multiplies it: start at 1 or more)"),
        ("-f 1", "invalid value '1' for --factor (must be above 1"),
        ("-f 0.5", "invalid value '0.5' for --factor (must be above 1"),
        ("-f -2", "invalid value '-2' for --factor (must be above 1"),
        ("-f two", "invalid value 'two' for --factor (must be a number above 1, such as 2 or 8)"),
        ("-f nan", "invalid value 'nan' for --factor"),
        ("-n 0", "invalid value '0' for --iters (must be a whole number, 1 or more)"),
        ("-n 1.5", "invalid value '1.5' for --iters"),
        ("-w -1", "invalid value '-1' for --warmup (must be a whole number, 0 or more)"),
        ("--max-seconds -1", "invalid value '-1' for --max-seconds"),
        ("-r 4", "invalid value '4' for --root (the ranks of this run are 0 to 3)"),
        ("-r -1", "invalid value '-1' for --root (the ranks of this run are 0 to 3)"),
        ("-c 2", "invalid value '2' for --check (must be 1 to check every result or 0 not to)"),
        ("--cadence fast", "unknown cadence 'fast' for --cadence (known: isolated, streaming)"),
        ("--sync none", "unknown sync 'none' for --sync (known: barrier, deadline)"),
        ("--precision -1", "invalid value '-1' for --precision"),
        ("--rotate 0", "invalid value '0' for --rotate (must be a whole number, 1 or more)"),
        ("--hang-seconds soon", "invalid value 'soon' for --hang-seconds"),
        ("-o new --resume old", "invalid value 'new' for --output (--resume writes to the folder that it names"),
        ("--device gpu", "unknown device 'gpu' for --device (known: auto, cpu, cuda)"),
        ("--min-byte 8", "unknown option '--min-byte' for bench.sweep (did you mean --min-bytes? --help lists them)"),
        ("-b", "invalid value '' for --min-bytes (expected one argument; --help shows how it is used)"),
        ("--no-plots=1", "for --no-plots (ignored explicit argument '1'; --help shows how it is used)"),
    ],
)
def test_bad_input_gets_a_sentence_with_option_value_and_remedy(line, sentence):
    assert sentence in refusal(line)


def test_bad_input_prints_nothing_itself(capsys):
    refusal("-b 12X")
    refusal("--nonsense")
    refusal("-b")
    assert capsys.readouterr() == ("", "")


def test_a_refusal_survives_being_sent_to_another_rank():
    sentence = refusal("-b 12X")
    with pytest.raises(UsageError) as error:
        parsed("-b 12X")
    assert str(pickle.loads(pickle.dumps(error.value))) == sentence


@pytest.mark.parametrize(("line", "show"), [("--help -b 12X", "help"), ("--version nonsense", "version")])
def test_help_and_version_are_answered_whatever_else_was_typed(line, show):
    assert parsed(line).show == show


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_alone_prints_and_all_exit_alike(rank, capsys):
    def outcome(line):
        with pytest.raises(SystemExit) as exit_:
            parse_or_exit(line.split(), rank, 4, ALGORITHMS)
        return exit_.value.code, *capsys.readouterr()

    code, out, err = outcome("-n 0")
    assert (code, out) == (2, "")
    assert err == (
        "bench.sweep: invalid value '0' for --iters (must be a whole number, 1 or more)\n" if rank == 0 else ""
    )
    code, out, err = outcome("--version")
    assert (code, out, err) == (0, f"collbench {__version__}\n" if rank == 0 else "", "")
    code, out, err = outcome("--help")
    assert (code, err, bool(out)) == (0, "", rank == 0)


def test_parse_or_exit_returns_what_can_be_swept():
    options = parse_or_exit(["--list"], 1, 4, ALGORITHMS)
    assert options.show == "list"


def test_help_says_each_default(capsys):
    with pytest.raises(SystemExit):
        parse_or_exit(["-h"], 0, 4, ALGORITHMS)
    text = " ".join(capsys.readouterr().out.split())
    for words in ("from each size to the next (default: 8)", "(default: 16M)", "(default: float32)", "(default: 50)",
                  "results/<UTC time>-<host>-n<ranks>", "powers of 1024"):  # fmt: skip
        assert words in text


def test_the_default_output_is_named_by_utc_time_host_and_ranks():
    now = datetime(2025, 1, 2, 4, 4, 5, tzinfo=timezone(timedelta(hours=1)))
    assert default_output(now, "atlas.example.org", 8) == Path("results/20250102T030405Z-atlas-n8")


def test_a_new_or_empty_folder_will_do_and_nothing_is_made(tmp_path):
    check_output(tmp_path / "new" / "deep")
    check_output(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_relative_folder_will_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_output(Path("results/x"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "rows.csv").touch()
    for folder, sentence in (
        (tmp_path / "full", "exists and is not empty"),
        (tmp_path / "full" / "rows.csv", "is a file"),
        (tmp_path / "full" / "rows.csv" / "below", "cannot be written"),
        (Path("/proc/collbench"), "cannot be written"),
    ):
        with pytest.raises(UsageError) as error:
            check_output(folder)
        assert f"invalid value '{folder}' for --output ({sentence}" in str(error.value)


# ---------------------------------------------------------------------------------------------------------------
# The library's own algorithms

OWN = {
    "broadcast": (*ALGORITHMS["broadcast"], "native:binomial", "native:knomial", "native:all"),
    "allreduce": (*ALGORITHMS["allreduce"], "native:ring", "native:all"),
    "sendrecv_pingpong": ALGORITHMS["sendrecv_pingpong"],
}


def with_own(line):
    return parse(line.split(), 4, OWN).algorithms


def test_the_librarys_own_algorithms_have_parameters_too():
    assert with_own("-a native:ring,ring") == ("native:ring", "ring")
    assert with_own("-a native:knomial:radix=2|4,segsize=64K,native:all") == (
        "native:knomial:radix=2:segsize=64K",
        "native:knomial:radix=4:segsize=64K",
        "native:all",
    )


def test_a_name_that_the_library_does_not_have_lists_those_it_has():
    with pytest.raises(UsageError) as error:
        with_own("allreduce broadcast -a native:rign")
    says = str(error.value)
    assert "unknown algorithm 'native:rign' for --algorithm (did you mean native:ring? known: native:ring" in says
    assert "native:knomial" in says
    assert "spread" not in says


def test_what_is_asked_of_a_library_that_cannot_be_told_is_left_out_later():
    assert parsed("-a native:ring,ring").algorithms == ("native:ring", "ring")
    assert with_own("sendrecv -a native:ring") == ("native:ring",)


def test_all_is_what_competes_unasked():
    assert with_own("-a all,native:all") == ("all", "native:all")
