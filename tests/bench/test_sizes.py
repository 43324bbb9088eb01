import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.sizes import MAX_SIZES, format_size, geometric, parse_size
from bench.usage import UsageError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8", 8),
        ("0", 0),
        ("512B", 512),
        ("4K", 4096),
        ("4k", 4096),
        ("4KB", 4096),
        ("4kib", 4096),
        ("4 KiB", 4096),
        ("1.5M", 1572864),
        ("2GiB", 2147483648),
        ("1T", 1099511627776),
        ("1.1T", 1209462790553),  # exact: floating point would be off
        ("1.3K", 1331),
        (" 64 ", 64),
    ],
)
def test_sizes_read_as_powers_of_1024(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "12X", "K", "-8", "1.5", "8iB", "1e6", "1,5M", "0x10", "4KK", "½K", "٣K", "nan"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError):
        parse_size(text)


def test_the_refusal_names_value_option_and_remedy():
    with pytest.raises(UsageError) as error:
        parse_size("12X", "--min-bytes")
    assert str(error.value) == "invalid size '12X' for --min-bytes (examples: 8, 1K, 64M, 4G)"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0"), (8, "8"), (1000, "1000"), (1023, "1023"), (1024, "1K"), (1536, "1.5K"), (5000, "4.88K"),
     (1048575, "1M"), (16777216, "16M"), (2**31, "2G"), (3 * 2**40, "3T"), (5 * 2**50, "5120T")],
)  # fmt: skip
def test_sizes_are_formatted_for_people(nbytes, text):
    assert format_size(nbytes) == text


@given(st.integers(0, 2**50))
def test_a_formatted_size_reads_back_within_its_two_decimals(nbytes):
    assert abs(parse_size(format_size(nbytes)) - nbytes) <= max(1, 0.006 * nbytes)


def test_the_default_sweep():
    assert geometric(8, 16 << 20, 8) == (8, 64, 512, 4096, 32768, 262144, 2097152, 16777216)


@pytest.mark.parametrize(
    ("ends", "factor", "sizes"),
    [
        ((8, 8), 2, (8,)),
        ((8, 100), 2, (8, 16, 32, 64)),  # the maximum is not forced
        ((3, 100), 1.5, (3, 4, 7, 10, 15, 23, 34, 51, 77)),
        ((8, 16), 2**0.5, (8, 11, 16)),  # reached by the factor, whatever the rounding
        ((1, 4), 1.1, (1, 2, 3, 4)),  # each once
        ((1, 1000), 10, (1, 10, 100, 1000)),
    ],
)
def test_sweeps(ends, factor, sizes):
    assert geometric(*ends, factor) == sizes


@given(st.integers(1, 2**20), st.integers(0, 30), st.sampled_from([2, 3, 4, 8, 10]))
def test_a_sweep_begins_at_the_minimum_and_ends_at_the_maximum_when_the_factor_leads_there(first, steps, factor):
    sizes = geometric(first, first * factor**steps, factor)
    assert sizes == tuple(first * factor**step for step in range(steps + 1))


@pytest.mark.parametrize(
    ("ends", "factor", "sentence"),
    [
        ((0, 8), 2, "invalid size '0' for --min-bytes (a sweep multiplies it: start at 1 or more)"),
        ((1 << 20, 1024), 2, "invalid value '1M' for --min-bytes (above --max-bytes 1K: lower it, or raise --max-byte"),
        ((8, 64), 1, "invalid value '1' for --factor (must be above 1"),
        ((8, 64), 0.5, "invalid value '0.5' for --factor (must be above 1"),
        ((8, 64), float("nan"), "invalid value 'nan' for --factor (must be above 1"),
        ((8, 64), float("inf"), "invalid value 'inf' for --factor (must be above 1"),
        ((8, 1 << 24), 1.00001, f"gives 1455617 sizes between 8 and 16M, at most {MAX_SIZES}"),
    ],
)
def test_what_gives_no_sweep_is_refused(ends, factor, sentence):
    with pytest.raises(UsageError) as error:
        geometric(*ends, factor)
    assert sentence in str(error.value)
