import subprocess
import sys

import pytest

from bench.estimate import Machine
from bench.network import Link, Network
from bench.planner import AXES, Asked, main, meshes, ranked, report
from strategies.models import MODELS, Model
from tests.waiting import HANG_S

MODEL = Model(
    name="small",
    layers=4,
    hidden=64,
    heads=8,
    kv_heads=2,
    head_dim=8,
    ffn=128,
    vocab=512,
    seq=64,
    source="made up here",
)
NETWORK = Network(Link(1e-6, 1e11), Link(5e-6, 1e10), ("a note",))
NET_FILE = '[inside]\nlatency = "1us"\nbandwidth = "100G"\n[between]\nlatency = "5us"\nbandwidth = "10G"\n'

needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 reads no TOML by itself")


def asked(model=MODEL, world=8, memory=1e9, axes=("tp", "cp", "ep", "pp", "dp"), **more):
    machine = Machine(NETWORK, 4, 1e12, memory)
    given = {"batch": world, "micro_batch": 1, "seq": 0, "shardings": ("ddp", "zero1", "fsdp"), "recompute": False}
    return Asked(model=model, world=world, machine=machine, axes=axes, top=5, **{**given, **more})


def test_every_mesh_divides_the_world_and_what_it_cuts():
    found = list(meshes(asked()))
    assert len({mesh.spec for mesh in found}) == len(found)
    for mesh in found:
        assert mesh.nranks == 8
        assert mesh.length("tp") in (1, 2)
        assert mesh.length("pp") in (1, 2, 4)
        assert mesh.length("ep") == 1
    # tp 1 or 2; pp 1, 2 or 4; cp and dp share what is left.
    assert len(found) == (4 + 3 + 2) + (3 + 2 + 1)


def test_experts_and_other_axes_are_tried_where_they_are_asked_for():
    experts = list(meshes(asked(MODELS["mixtral-8x7b"], axes=("ep", "dp"))))
    assert [mesh.length("ep") for mesh in experts] == [1, 2, 4, 8]
    assert {mesh.length("ulysses") for mesh in meshes(asked(axes=AXES))} == {1, 2, 4, 8}


def test_the_fastest_is_first_and_what_does_not_fit_is_apart():
    ranking = ranked(asked())
    times = [one.time for one in ranking.fits]
    assert times == sorted(times)
    assert ranking.too_large == []
    limit = sorted(one.memory for one in ranking.fits)[len(times) // 2]
    less = ranked(asked(memory=limit))
    assert all(one.memory <= limit for one in less.fits)
    assert all(one.memory > limit for one in less.too_large)
    assert len(less.fits) + len(less.too_large) == len(times)


def test_sequences_that_do_not_divide_are_counted():
    ranking = ranked(asked(batch=2))
    assert all(one.mesh.length("dp") <= 2 for one in ranking.fits)
    assert ranking.impossible["the sequences of a step do not divide by replicas times micro-batch"] > 0


def test_the_report_says_that_it_is_an_estimate_and_what_it_leaves_out():
    question = asked()
    text = report(question, ranked(question))
    assert text.startswith("An estimate, not a measurement: small on 8 GPUs")
    assert "left out:" in text
    assert "hides behind computing" in text
    assert "- a note" in text
    assert text.count("\n  ") >= 5
    nothing = asked(memory=1.0)
    assert "none fits" in report(nothing, ranked(nothing))
    assert "nearest:" in report(nothing, ranked(nothing))


@needs_toml
def test_the_command_ranks_a_large_model_without_mpi(tmp_path):
    (tmp_path / "a.toml").write_text(NET_FILE)
    program = (
        "import sys; from bench.planner import main; status = main(sys.argv[1:]); "
        "assert 'mpi4py.MPI' not in sys.modules; sys.exit(status)"
    )
    words = [
        "--model",
        "llama3-70b",
        "--world",
        "64",
        "--network",
        tmp_path / "a.toml",
        "--flops",
        "400T",
        "--top",
        "3",
    ]
    result = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)], capture_output=True, text=True, check=False, timeout=HANG_S
    )
    assert result.returncode == 0, result.stderr
    assert "llama3-70b on 64 GPUs" in result.stdout
    assert "\n  3  " in result.stdout
    assert "\n  4  " not in result.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--network a.toml", "--model"),
        ("--model llama3-8b", "--network"),
        ("--model llama9 --network a.toml", "'llama9' for --model"),
        ("--model llama3-8b --network none.toml", "none.toml' for --network"),
        ("--model llama3-8b --network a.toml --world 0", "'0' for --world"),
        ("--model llama3-8b --network a.toml --flops fast", "'fast' for --flops"),
        ("--model llama3-8b --network a.toml --memory 0", "'0' for --memory"),
        ("--model llama3-8b --network a.toml --axes tp,xx", "'xx' for --axes"),
        ("--model llama3-8b --network a.toml --weights zero9", "'zero9' for --weights"),
        ("--model llama3-8b --network a.toml --batch x", "'x' for --batch"),
        ("--model llama3-8b --network a.toml --nonsense", "--nonsense"),
    ],
)
@needs_toml
def test_bad_input_gets_one_message_and_status_2(tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text(NET_FILE)
    assert main(words.split()) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith("bench.planner: ")
    assert says in message
