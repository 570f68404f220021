"""Does the benchmark of thin links measure real training, and refuse what it cannot?  A tiny model, one link."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from thinwire.comm.netlab import unavailable

TINY = ("--width", "128", "--tokens", "512", "--layers", "1", "--streams", "2", "--links", "node", "--slowdown", "2")
SHORT = ("--repeats", "1", "--steps", "1", "--json")
ADDED_BYTES = 0.15
"""gloo's notices and headers, of messages as short as these; the benchmark itself allows 144 bytes each and 3 %."""


@pytest.fixture(scope="module")
def program(repository: Path) -> Path:
    return repository / "bench" / "communication.py"


@pytest.fixture(scope="module")
def bench(program: Path) -> ModuleType:
    sys.path.insert(0, str(program.parent))
    try:
        spec = importlib.util.spec_from_file_location("communication_bench", program)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(program.parent))
    return module


@pytest.fixture(scope="module")
def row(program: Path) -> dict[str, Any]:
    if reason := unavailable():
        pytest.skip(f"no shaped links here: {reason}")
    argv = [sys.executable, str(program), *TINY, *SHORT]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    (found,) = json.loads(ended.stdout)
    return found


@pytest.mark.slow
def test_interfaces_ledger_and_closed_form_agree(row: dict[str, Any]) -> None:
    """The benchmark compares every block before it prints; here once more, from outside."""
    assert row["link_model"] == "per-node"
    # A step: two streams; 18 pairs of a chunk (64 tokens) and a rank that reads it, there and back; bfloat16.
    pairs = 2 * 18 * 2
    theta = 2 * 2 * 6 * 2 * 4  # for keys and values, from 6 chunks to the next rank, there and back, float32
    assert row["wire_bytes_plain"] == pairs * 64 * 2 * 128 * 2
    assert row["wire_bytes_compressed"] == pairs * (64 * (3 + 6) * 2 + 2 * 4) + theta
    for codec in ("plain", "compressed"):
        wire, nic = row[f"wire_bytes_{codec}"], row[f"nic_bytes_{codec}"]
        assert wire < nic < (1 + (0.03 if codec == "plain" else ADDED_BYTES + 0.03)) * wire
        assert nic < row[f"nic_frame_bytes_{codec}"]


@pytest.mark.slow
def test_a_thin_link_slows_plain_training_by_its_bytes(row: dict[str, Any]) -> None:
    busiest_bytes = 12 / 36 * row["wire_bytes_plain"]  # 6 of 18 pairs share a cable in each direction
    least = busiest_bytes * 8 / row["link_bits_per_s"]
    for name in ("plain_shaped", "plain_model"):  # what was saved up before the step goes out at once
        assert row["seconds"][name] > 0.95 * least
    for name, seconds in row["seconds"].items():
        if f"{name}_tokens_per_s" in row:
            assert row[f"{name}_tokens_per_s"] == pytest.approx(2 * 512 / seconds)
        assert row["spreads"][name] == 0


def a_block(bench: ModuleType, ledger: dict[str, float], *, nic: float, finite: bool = True) -> Any:
    return bench.Block(
        seconds=1.0,
        waited_seconds=0.0,
        busy_seconds=1.0,
        is_finite=finite,
        loss=5.0,
        ledger=ledger,
        num_messages=0.0,
        nic_frame_bytes=nic,
        nic_bytes=nic,
    )


@pytest.mark.parametrize(
    ("change", "nic", "finite", "said"),
    [
        (0, 1.0, True, []),
        (0, 1.029, True, []),
        (0, 1.031, True, ["the interfaces counted +3.1% of what was sent"]),
        (0, 0.9, True, ["the interfaces counted -10.0% of what was sent"]),
        (-2, 1.0, True, ["bytes of kv-forward were counted"]),
        (0, 1.0, False, ["a loss or a gradient is not finite"]),
    ],
)
def test_wrong_blocks_are_refused(
    bench: ModuleType, change: int, nic: float, finite: bool, said: Sequence[str]
) -> None:
    contest = bench.make_contest(bench.parse(list(TINY)))
    counted = {tag: float(count) for tag, count in contest.traffic("plain").by_tag().items() if tag != "sync"}
    counted["kv-forward"] += change
    block = a_block(bench, counted, nic=nic * sum(counted.values()), finite=finite)

    class Ranks:
        def train(self, codec: str, team: str, *, steps: int) -> Any:
            assert (codec, team, steps) == ("plain", "cables", 1)
            return block

    referee = bench.Referee(contest, Ranks())
    referee.run("plain", "cables", steps=1, name="a block")
    assert len(referee.wrong) == len(said)
    assert all(part in wrong for part, wrong in zip(said, referee.wrong, strict=True))


def test_the_link_takes_so_long_for_a_plain_step(bench: ModuleType) -> None:
    contest = bench.make_contest(bench.parse(["--tokens", "2048", "--streams", "2", "--slowdown", "21"]))
    chunk_bits = 2 * 2 * 256 * 2 * 512 * 2 * 8  # two streams, two layers, 256 tokens, K and V, bfloat16
    payload_share = 1448 / 1514
    node = bench.link_for(contest, per="node", plain_seconds=1.5)
    assert node.bits_per_s == pytest.approx(12 * chunk_bits / payload_share / (21 * 1.5))
    pair = bench.link_for(contest, per="pair", plain_seconds=1.5)
    assert pair.bits_per_s == pytest.approx(4 * chunk_bits / payload_share / (21 * 1.5))
    assert (node.per, pair.per) == ("node", "pair")


@pytest.mark.parametrize(("argv", "said"), [(["--tokens", "4"], "sequence.chunks"), (["--width", "32"], "model.heads")])
def test_settings_that_make_no_run_are_refused(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    assert bench.main(argv) == 2
    assert said in capsys.readouterr().err
