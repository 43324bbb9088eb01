"""Message sizes as people write them, and the sweep of sizes between two of them."""

import math
import re
from fractions import Fraction

from bench.usage import UsageError

PREFIXES = "KMGT"  # powers of 1024, as nccl-tests and IMB read them; bandwidths are decimal all the same
MAX_SIZES = 1000  # a sweep of more is a mistyped factor, and would run for days

_WHOLE_BYTES = r"(?P<whole>[0-9]{1,18})B?"
_WITH_PREFIX = r"(?P<number>[0-9]{1,18}(\.[0-9]{1,18})?)\s*(?P<prefix>[KMGT])(I?B)?"
_SIZE = re.compile(f"{_WHOLE_BYTES}|{_WITH_PREFIX}")


def parse_size(text: str, option: str = "size") -> int:
    """Return the bytes that `text` means: `8`, `4K`, `1.5M`, `2GiB`, in powers of 1024 and in either case.

    A fraction of a byte is rounded down. Raises UsageError, naming `option`, for anything else.
    """
    match = _SIZE.fullmatch(text.strip().upper())
    if match is None:
        raise UsageError(option, text, "examples: 8, 1K, 64M, 4G", "invalid size")
    if match["whole"]:
        return int(match["whole"])
    return int(Fraction(match["number"]) * 1024 ** (1 + PREFIXES.index(match["prefix"])))


def format_size(nbytes: int) -> str:
    """Return `nbytes` as people read it, with at most two decimals: `8`, `512`, `4K`, `1.5M`, `2G`."""
    value, prefix = float(nbytes), ""
    for larger in PREFIXES:
        if round(value, 2) < 1024:
            break
        value, prefix = value / 1024, larger
    return f"{value:.2f}".rstrip("0").rstrip(".") + prefix


def geometric(min_bytes: int, max_bytes: int, factor: float) -> tuple[int, ...]:
    """Return the sizes min, min x factor, min x factor², ... up to max, in bytes, each once and rising.

    The largest is at most `max_bytes`, and is it only when the factor leads there. Raises UsageError for a range or a
    factor that gives no sweep.
    """
    if min_bytes < 1:
        raise UsageError("--min-bytes", min_bytes, "a sweep multiplies it: start at 1 or more", "invalid size")
    if min_bytes > max_bytes:
        remedy = f"above --max-bytes {format_size(max_bytes)}: lower it, or raise --max-bytes"
        raise UsageError("--min-bytes", format_size(min_bytes), remedy)
    if not (factor > 1 and math.isfinite(factor)):
        raise UsageError("--factor", f"{factor:g}", "must be above 1: 2 doubles the size, 8 is the default")
    # The tolerance keeps a last size that rounding put a hair above the maximum (8 x sqrt(2) twice is 16).
    steps = math.floor(math.log(max_bytes / min_bytes) / math.log(factor) + 1e-9)
    if steps >= MAX_SIZES:
        span = f"between {format_size(min_bytes)} and {format_size(max_bytes)}"
        raise UsageError("--factor", f"{factor:.12g}", f"gives {steps + 1} sizes {span}, at most {MAX_SIZES}: raise it")
    return tuple(sorted({round(min_bytes * factor**step) for step in range(steps + 1)}))
