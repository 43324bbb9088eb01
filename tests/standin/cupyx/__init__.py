"""Pinned memory of the stand-in."""

import numpy as np
from cupy._machine import Pinned, machine


def empty_pinned(shape, dtype=float):
    result = np.empty(shape, dtype).view(Pinned)
    result.view(np.uint8).reshape(-1)[:] = 0xEE
    machine.pinned[id(result)] = result
    return result
