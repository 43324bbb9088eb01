import csv
import io
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.layout import experts_of, heads_of, layers_of, main, sequences_of, tokens_of
from strategies.mesh import Mesh
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]

# Sequence 16000, 16 heads, ring of 4, Ulysses 2, on 8 GPUs.
QUARTERS = ["0~3999", "4000~7999", "8000~11999", "12000~15999"]
HALVES = ["0-7", "8-15"]
PLACED = {  # ring and Ulysses index of GPU 0 to 7
    "ring-inner": [(gpu % 4, gpu // 4) for gpu in range(8)],
    "ulysses-inner": [(gpu // 2, gpu % 2) for gpu in range(8)],
}
OUTSIDE = {  # first token of each GPU's 2000, contiguous
    "ring-inner": [0, 4000, 8000, 12000, 2000, 6000, 10000, 14000],
    "ulysses-inner": [0, 2000, 4000, 6000, 8000, 10000, 12000, 14000],
}
ZIGZAG = [(0, 14000), (2000, 12000), (4000, 10000), (6000, 8000)]  # first tokens of the two chunks by ring index


def printed(capsys, options):
    assert main(options.split()) == 0
    return capsys.readouterr().out


def gpu_lines(text):
    """{GPU: what its line says}"""
    lines = [line.strip().split(": ") for line in text.splitlines() if line.startswith("  GPU")]
    return {int(gpu.removeprefix("GPU")): held for gpu, held in lines}


def test_context_parallel_alone_wastes_half_of_eight_gpus(capsys):
    assert printed(capsys, "--world 8 --mesh cp=4 --seq 16000") == (
        "CP group 0: GPU0 GPU1 GPU2 GPU3\n"
        "  GPU0: token 0~3999\n"
        "  GPU1: token 4000~7999\n"
        "  GPU2: token 8000~11999\n"
        "  GPU3: token 12000~15999\n"
        "CP group 1: GPU4 GPU5 GPU6 GPU7\n"
        "  GPU4: token 0~3999\n"
        "  GPU5: token 4000~7999\n"
        "  GPU6: token 8000~11999\n"
        "  GPU7: token 12000~15999\n"
        "GPU4 to GPU7 repeat the work of GPU0 to GPU3: wasted, unless another axis uses them "
        "(as dp=2 they would not be)\n"
    )


def test_ring_innermost_inside_attention(capsys):
    options = "--mesh cp=4,ulysses=2 --heads 16 --seq 16000 --placement ring-inner"
    assert printed(capsys, options) == (
        "CP group 0: GPU0 GPU1 GPU2 GPU3\n"
        "  GPU0: token 0~3999, heads 0-7\n"
        "  GPU1: token 4000~7999, heads 0-7\n"
        "  GPU2: token 8000~11999, heads 0-7\n"
        "  GPU3: token 12000~15999, heads 0-7\n"
        "CP group 1: GPU4 GPU5 GPU6 GPU7\n"
        "  GPU4: token 0~3999, heads 8-15\n"
        "  GPU5: token 4000~7999, heads 8-15\n"
        "  GPU6: token 8000~11999, heads 8-15\n"
        "  GPU7: token 12000~15999, heads 8-15\n"
        "Ulysses group 0: GPU0 GPU4\n"
        "Ulysses group 1: GPU1 GPU5\n"
        "Ulysses group 2: GPU2 GPU6\n"
        "Ulysses group 3: GPU3 GPU7\n"
    )


@pytest.mark.parametrize("placement", PLACED)
def test_inside_attention(capsys, placement):
    lines = gpu_lines(printed(capsys, f"--mesh cp=4,ulysses=2 --heads 16 --seq 16000 --placement {placement}"))
    for gpu, (ring, ulysses) in enumerate(PLACED[placement]):
        assert lines[gpu] == f"token {QUARTERS[ring]}, heads {HALVES[ulysses]}"


@pytest.mark.parametrize("placement", PLACED)
def test_outside_attention(capsys, placement):
    options = f"--mesh cp=4,ulysses=2 --heads 16 --seq 16000 --phase outside --placement {placement}"
    lines = gpu_lines(printed(capsys, options))
    for gpu, first in enumerate(OUTSIDE[placement]):
        assert lines[gpu] == f"token {first}~{first + 1999}, heads 0-15"


@pytest.mark.parametrize("placement", PLACED)
def test_zigzag(capsys, placement):
    options = f"--mesh cp=4,ulysses=2 --heads 16 --seq 16000 --zigzag --placement {placement}"
    inside = gpu_lines(printed(capsys, options))
    outside = gpu_lines(printed(capsys, f"{options} --phase outside"))
    for gpu, (ring, ulysses) in enumerate(PLACED[placement]):
        chunks = [f"{first}~{first + 1999}" for first in ZIGZAG[ring]]
        assert inside[gpu] == f"token {chunks[0]} and {chunks[1]}, heads {HALVES[ulysses]}"
        assert outside[gpu] == f"token {chunks[ulysses]}, heads 0-15"


def test_experts_are_whole(capsys):
    text = printed(capsys, "--mesh ep=4 --experts 16")
    assert gpu_lines(text) == {0: "experts 0-3", 1: "experts 4-7", 2: "experts 8-11", 3: "experts 12-15"}
    assert text.endswith("experts on each GPU: 4 of 16, whole\n")
    assert "1/2 of each (etp=2)" in printed(capsys, "--mesh etp=2,ep=4 --experts 4 --order megatron-expert")


def test_all_axes_together(capsys):
    text = printed(capsys, "--mesh tp=2,cp=2,dp=2,pp=2 --seq 100 --heads 8 --layers 3 --batch 6 --group dp-cp")
    assert text.startswith("DP-CP group 0: GPU0 GPU2 GPU4 GPU6\n")
    lines = gpu_lines(text)
    assert lines[0] == "token 0~49, heads 0-3, layers 0-1, sequences 0-2"
    assert lines[15] == "token 50~99, heads 4-7, layer 2, sequences 3-5"
    assert "PP group 0: GPU0 GPU8\n" in text


def test_groups_are_printed_when_nothing_is_cut(capsys):
    text = printed(capsys, "--mesh tp=2,cp=2,dp=2")
    assert "CP group 1: GPU1 GPU3\nCP group 2: GPU4 GPU6\n" in text
    assert "DP group 3: GPU3 GPU7\n" in text
    assert "token" not in text


def test_what_is_cut_but_not_shown_is_said(capsys):
    assert printed(capsys, "--mesh cp=2,ulysses=2 --seq 8").endswith(
        "ulysses=2 also cuts the heads: add --heads to see which\n"
    )
    assert "also cuts" not in printed(capsys, "--mesh cp=2,ulysses=2 --seq 8 --phase outside")


def test_one_gpu_that_repeats(capsys):
    assert "GPU1 repeats the work of GPU0: wasted" in printed(capsys, "--world 2 --mesh cp=1 --seq 8")
    assert "(as dp=6 they would not be)" in printed(capsys, "--world 12 --mesh cp=2,dp=2 --seq 8")


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.sampled_from(["inside", "outside"]), st.booleans(), st.integers(1, 3))
def test_every_token_and_head_is_held_once(cp, ulysses, phase, zigzag, factor):
    seq, heads = 2 * cp * ulysses * factor, ulysses * factor
    for placement in PLACED:
        mesh = Mesh({"cp": cp, "ulysses": ulysses}, placement=placement)
        held = [
            (token, head)
            for rank in range(mesh.nranks)
            for tokens in tokens_of(mesh, rank, seq, phase, zigzag)
            for token in tokens
            for head in heads_of(mesh, rank, heads, phase)
        ]
        assert sorted(held) == [(token, head) for token in range(seq) for head in range(heads)]


def test_the_exchange_brings_together_what_its_group_held():
    mesh = Mesh("cp=4,ulysses=2", placement="ring-inner")
    for zigzag in (False, True):
        for group in mesh.groups("ulysses"):
            outside = [t for rank in group for held in tokens_of(mesh, rank, 160, "outside", zigzag) for t in held]
            for rank in group:
                assert [t for held in tokens_of(mesh, rank, 160, "inside", zigzag) for t in held] == outside


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_experts_layers_and_sequences_are_held_once(ep, pp, dp, factor):
    mesh = Mesh({"ep": ep, "pp": pp, "dp": dp})
    firsts = {axes: [mesh.group(axes, 0)[i] for i in range(mesh.length(axes))] for axes in ("ep", "pp", "dp-ep")}
    assert [e for rank in firsts["ep"] for e in experts_of(mesh, rank, ep * factor)] == list(range(ep * factor))
    assert [x for rank in firsts["pp"] for x in layers_of(mesh, rank, pp + factor)] == list(range(pp + factor))
    batch = dp * ep * factor
    assert [x for rank in firsts["dp-ep"] for x in sequences_of(mesh, rank, batch)] == list(range(batch))


def test_csv_has_a_row_a_rank(capsys):
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "--world 8 --mesh cp=4 --seq 16 --zigzag --format csv"))))
    assert len(rows) == 8
    assert rows[5] == {"rank": "5", "cp": "1", "repeat": "1", "cp_group": "1", "tokens": "2-3;12-13"}


def test_svg_is_a_grid_coloured_by_group(capsys):
    svg = ElementTree.fromstring(printed(capsys, "--world 8 --mesh cp=2,tp=2 --seq 16 --format svg --gpus-per-node 4"))
    boxes = svg.findall("{*}rect")[1:]
    fills = [box.get("fill") for box in boxes]
    assert fills[0] == fills[2] != fills[1] == fills[3]
    assert len(set(fills)) == 4
    assert len({box.get("y") for box in boxes}) == 2
    assert [box.get("stroke-dasharray") is not None for box in boxes] == 4 * [False] + 4 * [True]
    texts = [text.text for text in svg.findall("{*}text")]
    assert {"GPU7", "token 8~15", "node 1", "tp1 cp1"} <= set(texts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--mesh cp=3 --world 8", "--world 8 --mesh cp=3: 8 ranks do not divide by cp=3: 8 = 3·2 + 2; take a multiple"),
        ("--mesh cp=4,ulysses=2 --heads 15", "--heads 15: 15 heads do not divide by tp·ulysses = 1·2: 15 = 2·7 + 1; "),
        ("--mesh cp=4 --seq 10", "--seq 10: 10 tokens do not divide by cp·ulysses = 4·1: 10 = 4·2 + 2; "),
        ("--mesh cp=4 --seq 12 --zigzag", "--seq 12: 12 tokens do not divide by 2·cp·ulysses = 2·4·1 (zigzag): "),
        ("--mesh ep=4 --experts 6", "--experts 6: 6 experts do not divide by ep=4: "),
        ("--mesh pp=4 --layers 3", "--layers 3: 3 layers on pp=4 stages leave some empty; take more layers"),
        ("--mesh dp=2,ep=2 --batch 6", "--batch 6: 6 sequences do not divide by ep·dp = 4: "),
        ("--mesh sp=2", "--mesh sp=2: 'sp' is no axis"),
        ("--mesh cp=2 --group xx", "--group xx: 'xx' is no axis"),
        ("--mesh cp=2 --order xx", "--order xx: 'xx' in order 'xx' is no axis; join axes by '-'"),
        ("--mesh cp=2 --seq 0", "--seq: '0' is not a whole number from 1 up; write one such as 8"),
        ("--mesh cp=2 --world 1.5", "--world: '1.5' is not a whole number"),
        ("--mesh cp=2 --phase middle", "--phase: invalid choice: 'middle'"),
        ("--mesh cp=2 --placement xx", "--placement: invalid choice: 'xx'"),
        ("--seq 16", "required: --mesh"),
        ("--mesh cp=2 --sequence 16", "unrecognized arguments: --sequence"),
    ],
)
def test_bad_input_is_one_message_and_exit_status_2(capsys, options, message):
    with pytest.raises(SystemExit) as stopped:
        main(options.split())
    assert stopped.value.code == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert message in seen.err
    assert seen.err.count("\n") == 1


def test_command_runs_without_mpi_and_survives_a_closed_pipe():
    command = [sys.executable, "-m", "strategies.layout", "--mesh", "dp=20000", "--batch", "20000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=HANG_S) == 0
    code = "import sys, strategies.layout, strategies.traffic; sys.exit('mpi4py' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ), check=False).returncode == 0
