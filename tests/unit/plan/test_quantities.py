"""Numbers with units mean what people mean, and nonsense is answered with an example."""

import re
from collections.abc import Callable

import pytest

from thinwire.base.errors import UserError
from thinwire.plan import quantities


@pytest.mark.parametrize(
    ("text", "value"),
    [("300Mbps", 3e8), ("1.5 Gbps", 1.5e9), ("100Mbit/s", 1e8), ("64kbps", 64e3), ("1e6", 1e6), ("20 mbps", 2e7)],
)
def test_rates(text: str, value: float) -> None:
    assert quantities.bits_per_s(text, where="--link") == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "value"), [("20ms", 0.02), ("1.5s", 1.5), ("0", 0), ("30d", 2_592_000), ("12h", 43_200), ("5min", 300)]
)
def test_durations(text: str, value: float) -> None:
    assert quantities.seconds(text, where="--delay") == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(("text", "value"), [("16B", 16_000_000_000), ("1.5M", 1_500_000), ("100k", 100_000), ("7", 7)])
def test_counts(text: str, value: int) -> None:
    assert quantities.count(text, where="--tokens") == value


@pytest.mark.parametrize("text", ["", "fast", "-3Mbps", "300MB", "0", "0Mbps", "3 4Mbps", "nan"])
def test_a_rate_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        quantities.bits_per_s(text, where="--link")
    assert "300Mbps" in caught.value.fix
    assert "--link" in caught.value.where


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (quantities.seconds, "1e400h"), (quantities.seconds, "inf"), (quantities.seconds, "nan"),
        (quantities.num_bytes, "1e400GB"), (quantities.count, "1e400"), (quantities.budget, "1e400h"),
        (quantities.budget, "1e400 ops"), (quantities.budget, "inf"), (quantities.budget, "nan ops"),
        (quantities.bits_per_s, "1e300Tbps"),
    ],
)  # fmt: skip
def test_what_is_not_finite_or_no_size_is_refused(read: Callable[..., object], text: str) -> None:
    with pytest.raises(UserError) as caught:
        read(text, where="--flag")
    assert "for example" in caught.value.fix


@pytest.mark.parametrize(
    ("read", "units"),
    [
        (quantities.seconds, ("ms", "h", "d")),
        (quantities.num_bytes, ("gb", "mib")),
        (quantities.budget, ("h", "byte-forwards", "ops")),
    ],
)
def test_a_number_without_a_unit_is_refused_with_the_units(read: Callable[..., object], units: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="has no unit") as caught:
        read("10", where="--flag")
    assert set(units) <= set(re.findall(r"[a-z-]+", caught.value.fix.split(":")[0]))
