"""Are units converted by the right factor and shown as a person reads them?"""

import pytest

from thinwire.base.units import bits_per_byte, format_bytes, format_count, format_seconds


def test_bits_per_byte_divides_by_ln_2() -> None:
    assert bits_per_byte(1.0) == pytest.approx(1.4426950408889634, rel=1e-15)
    assert bits_per_byte(5.545177444479562) == pytest.approx(8.0, rel=1e-15)  # ln 256: one whole byte


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_500_000, "1.5 MB"),
        (33_302_852, "33.3 MB"),
        (2_000_000_000, "2.0 GB"),
        (3e12, "3.0 TB"),
        (4e15, "4000.0 TB"),
    ],
)
def test_format_bytes(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.142, "0.1 s"),
        (59.9, "59.9 s"),
        (60, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (7261, "2 h 1 min"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (32_928, "32,928"),
        (8_325_713, "8.33M"),
        (59e6, "59.00M"),
        (8.39e9, "8.39G"),
        (1.5e12, "1.50T"),
        (2e15, "2000.00T"),
    ],
)
def test_format_count(count: float, text: str) -> None:
    assert format_count(count) == text
