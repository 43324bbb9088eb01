"""Commands that print much, and a reader that leaves, as `head` does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import HANG_S

COMMANDS = [
    "collectives.explain alltoall -n 64 -a spread",
    "strategies.layout --world 8 --mesh cp=4 --seq 16000",
    "bench.planner --model tiny --world 8 --gpus-per-node 4 --flops 100T --network {network}",
    pytest.param("bench.native", marks=pytest.mark.launch),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_the_reader_does_not_want_is_no_error(command, tmp_path):
    network = tmp_path / "network.toml"
    network.write_text("".join(f'[{where}]\nlatency = "3us"\nbandwidth = "50G"\n' for where in ("inside", "between")))
    reads, writes = os.pipe()
    os.close(reads)
    ended = subprocess.run(
        [sys.executable, "-m", *command.format(network=network).split()],
        stdout=writes,
        stderr=subprocess.PIPE,
        text=True,
        timeout=HANG_S,
        cwd=Path(__file__).parents[1],
    )
    os.close(writes)
    assert (ended.returncode, ended.stderr) == (0, "")
