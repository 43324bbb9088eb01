import sys

import pytest

from bench.network import Link, fitted, rate, read_network, seconds
from bench.rows import ROWS_FILE, RowWriter, write_run
from bench.usage import UsageError

needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 reads no TOML by itself")

INSIDE = '[inside]\nlatency = "3us"\nbandwidth = "400G"\n'
BETWEEN = "[between]\nlatency = 8e-6\nbandwidth = 50e9\n"


@pytest.fixture
def run(tmp_path, row):
    def make(nnodes, times, primitive="sendrecv_pingpong"):
        folder = tmp_path / f"run{nnodes}"
        folder.mkdir()
        write_run(folder, {"nnodes": nnodes})
        with RowWriter(folder / ROWS_FILE) as writer:
            for nbytes, time_us in times.items():
                for algorithm, slower in (("native", 1.5), ("direct", 1)):
                    writer.write(
                        row(primitive=primitive, algorithm=algorithm, nbytes=nbytes, time_us_p50=time_us * slower)
                    )
        return folder

    return make


@needs_toml
def test_a_file_gives_both_links(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(INSIDE + BETWEEN)
    network = read_network(str(path))
    assert network.inside == Link(3e-6, 400e9)
    assert network.between == Link(8e-6, 50e9)
    assert network.notes == ()


@needs_toml
def test_what_is_not_given_is_taken_from_the_other_and_said(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(INSIDE)
    network = read_network(str(path))
    assert network.between == network.inside
    assert "between nodes are not given" in network.notes[0]


def test_a_run_has_latency_at_its_smallest_and_bandwidth_from_its_largest_message(run):
    folder = run(1, {8: 2.0, 1024: 2.5, 1_000_008: 102.0})
    network = read_network(str(folder / "run.json"))
    assert network.inside.latency == pytest.approx(2e-6)
    assert network.inside.bandwidth == pytest.approx(1e6 / 100e-6)
    assert read_network(str(folder)) == network


def test_a_run_on_several_nodes_measured_between_them(run):
    both = f"{run(1, {8: 1.0, 1008: 2.0})},{run(2, {8: 5.0, 1008: 15.0})}"
    network = read_network(both)
    assert network.inside == Link(pytest.approx(1e-6), pytest.approx(1e9))
    assert network.between == Link(pytest.approx(5e-6), pytest.approx(1e8))
    assert "one pair of ranks" in network.notes[0]


def test_fitted_by_hand():
    assert fitted({10: 1.0, 110: 3.0, 20: 9.0}) == Link(1.0, 50.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "write [inside] and [between]"),
        ("[outside]\n", "outside"),
        ("[inside]\nlatency = 1\n", "must have latency and bandwidth"),
        ('[inside]\nlatency = "3 fortnights"\nbandwidth = 1\n', "is no time"),
        ('[inside]\nlatency = 1\nbandwidth = "fast"\n', "is no rate"),
        ("[inside", "cannot be read as TOML"),
    ],
)
@needs_toml
def test_bad_files_are_named_with_the_reason(tmp_path, text, says):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        read_network(str(path))
    assert says in str(error.value)
    assert "bad.toml" in str(error.value)
    assert "--network" in str(error.value)


def test_a_run_without_pingpong_or_no_run_at_all_is_refused(run, tmp_path):
    with pytest.raises(UsageError, match="no two sizes of sendrecv_pingpong"):
        read_network(str(run(1, {8: 1.0}, primitive="allreduce")))
    with pytest.raises(UsageError, match=r"neither a .toml file nor a run"):
        read_network(str(tmp_path / "nothing"))


def test_times_and_rates():
    read = [seconds(text) for text in ("3us", "1.5 ms", "2s", "250ns", 4)]
    assert read == pytest.approx([3e-6, 1.5e-3, 2, 250e-9, 4])
    assert [rate(text) for text in ("400T", "50 G", "1.5K", 7, "2e9")] == [400e12, 50e9, 1500, 7, 2e9]
    for text in ("0", "-1", "4X", ""):
        with pytest.raises(ValueError, match="is no rate"):
            rate(text)
    for text in ("3", "-1s", "us"):
        with pytest.raises(ValueError, match="is no time"):
            seconds(text)
