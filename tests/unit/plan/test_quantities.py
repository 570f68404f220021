"""Numbers with units mean what people mean, and nonsense is answered with an example."""

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
    ("text", "value"), [("20ms", 0.02), ("1.5s", 1.5), ("90", 90), ("30d", 2_592_000), ("12h", 43_200), ("5min", 300)]
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
