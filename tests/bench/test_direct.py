"""Which contenders may hand GPU memory to MPI: what is tried, and what follows from it. No MPI and no GPU."""

import mmap

import pytest

from bench.direct import BY_HAND, EXCHANGE, Case, Evidence, cases, look
from bench.launch import outside
from bench.probes import NBYTES, segments, tidy
from bench.ways import Ways
from collectives import PRIMITIVES

SHORT, LONG = NBYTES
CONTENDERS = {"allreduce": ["native", "native_persistent", "ring"], "gather": ["native", "linear"]}


def evidence(*broken, **more):
    wanted = cases(CONTENDERS)
    return look(wanted, lambda case: "crashed" if case in broken else "", **more)


def test_each_call_is_tried_in_both_size_classes_and_one_exchange_for_all_by_hand():
    assert cases(CONTENDERS) == [
        Case(EXCHANGE, BY_HAND, SHORT),
        Case(EXCHANGE, BY_HAND, LONG),
        *(Case("allreduce", form, nbytes) for form in ("native", "native_persistent") for nbytes in NBYTES),
        *(Case("gather", "native", nbytes) for nbytes in NBYTES),
    ]
    assert cases({"allreduce": ["native:ring"]}) == [Case("allreduce", "native", nbytes) for nbytes in NBYTES]


def test_a_contender_may_hand_over_what_was_seen_to_be_moved():
    seen = evidence(Case("allreduce", "native", LONG), Case(EXCHANGE, BY_HAND, SHORT))
    assert seen.refusal("allreduce", "native", 64) == ""
    assert seen.refusal("allreduce", "native", 1 << 16) == (
        "MPI was not seen to take GPU memory: allreduce native of 1048576 bytes crashed"
    )
    assert seen.refusal("allreduce", "native_persistent", 1 << 26) == ""
    assert seen.refusal("gather", "native", 1 << 26) == ""
    for nbytes in (64, 1 << 26):  # long vectors are cut into short messages too
        assert "sendrecv_exchange direct of 8 bytes crashed" in seen.refusal("gather", "linear", nbytes)
    assert "was not tried" in seen.refusal("scatter", "native", 64)


def test_one_try_is_enough_where_it_fails_and_the_library_says_so_itself():
    tried = []

    def attempt(case):
        tried.append(case)
        return "crashed"

    found = look(cases(CONTENDERS), attempt, compiled=False, queried=False)
    assert tried == [Case(EXCHANGE, BY_HAND, SHORT)]
    assert "the library says that it takes none, and sendrecv_exchange" in found.refusal("gather", "native", 8)
    tried.clear()
    look(cases(CONTENDERS), attempt, compiled=True, queried=True)  # what it says does not decide
    assert set(tried) == set(cases(CONTENDERS))


def test_what_the_library_says_is_recorded_and_does_not_decide():
    seen = evidence(compiled=True, queried=False)
    assert not any(seen.found.values())
    facts = seen.facts()
    assert (facts["compiled_for_cuda"], facts["says_it_takes_it"]) == (True, False)
    assert facts["tried"]["gather native of 8 bytes"] == "works"


def way(wanted, label, seen, primitive="allreduce", nbytes=64, **more):
    return Ways(wanted, True, seen, **more).of(PRIMITIVES[primitive].problem(2, 16), label, nbytes)


def test_buffers_go_directly_where_that_works_and_through_the_host_elsewhere():
    works, broken = evidence(), evidence(*cases(CONTENDERS))
    windowed = next(one.name for one in PRIMITIVES["allreduce"].algorithms.values() if "window" in one.name)
    for label in ("native", "ring"):
        assert way("auto", label, works) == ("direct", "")
        assert way("auto", label, broken) == ("staged", "")
        assert way("direct", label, works) == ("direct", "")
        kind, reason = way("direct", label, broken)
        assert kind == "direct"
        assert reason.startswith("MPI was not seen to take GPU memory")
        assert way("staged", label, None) == ("staged", "")
    assert way("window", "native", None) == ("staged", "")  # the baseline
    assert way("window", "ring", None) == ("staged", "its transport is staged")
    assert way("auto", windowed, works) == ("window", "")
    assert way("direct", windowed, works) == ("window", "its transport is window")
    assert way("staged", windowed, None) == ("staged", "")
    assert way("staged", "window", None, primitive="barrier") == ("window", "its transport is window")  # it has no data
    assert way("auto", windowed, works, unreachable="no IPC") == ("staged", "")
    assert way("window", windowed, None, unreachable="no IPC") == ("window", "no IPC")
    assert way("auto", "nccl:ring", works) == ("nccl", "")
    assert way("auto", "nccl", works, nccl_refusal="it hangs") == ("nccl", "it hangs")
    assert way("direct", "nccl", works) == ("nccl", "its transport is nccl")
    assert way("direct", "native", broken, primitive="barrier") == ("message", "")
    for label, way_on_host in (("ring", "message"), (windowed, "window")):
        assert Ways().of(PRIMITIVES["allreduce"].problem(2, 16), label, 64) == (way_on_host, "")


def test_a_job_beside_the_own_one_gets_what_the_user_has_set_and_not_what_launchers_tell():
    told = {
        "PMI_RANK": "0",
        "PMIX_RANK": "0",
        "OMPI_COMM_WORLD_RANK": "0",
        "HYDI_CONTROL_FD": "9",
        "MPI_LOCALNRANKS": "2",
        "SLURM_JOB_ID": "7",
        "PRTE_LAUNCHED": "1",
    }
    chosen = {
        "PATH": "/bin",
        "OMPI_MCA_pml": "ucx",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "MPIR_CVAR_ENABLE_GPU": "1",
        "UCX_TLS": "cuda,sm",
    }
    assert outside({**told, **chosen}) == chosen


@pytest.mark.parametrize("nbytes", [8, 4096])
def test_a_short_vector_needs_only_the_short_case(nbytes):
    assert Evidence({Case("gather", "native", SHORT): ""}).refusal("gather", "native", nbytes) == ""
    assert Evidence({Case("gather", "native", SHORT): ""}).refusal("gather", "native", nbytes + 4096)


def test_shared_memory_that_a_crash_has_left_is_removed_and_no_other(tmp_path):
    old, used, left, other = (tmp_path / name for name in ("mpich_shm_0", "mpich_shm_1", "mpich_shm_2", "a file"))
    old.write_bytes(b"x")
    before = segments(tmp_path)
    for path in (used, left, other):
        path.write_bytes(b"x" * mmap.PAGESIZE)
    with used.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        tidy(before, tmp_path)
        assert set(tmp_path.iterdir()) == {old, used, other}
