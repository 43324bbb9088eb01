"""Waiting for other processes: for long, since what takes a second alone takes many on a machine that is busy."""

import time

HANG_S = 180
"""After so long a command hangs: no load makes one of the tests take that long."""


def wait_for(condition, what):
    """Wait until the condition holds; `what` says in the failure what was waited for."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {HANG_S} s for {what}"
        time.sleep(0.005)
