"""Does ``measure throughput`` give the contract's keys, consistent with one another, for every kind of run?"""

import json
import shutil
from pathlib import Path

import pytest

from thinwire.kernels import peak
from thinwire.soma import throughput
from thinwire.soma.ensemble import load_ensemble
from thinwire.soma.every_expert import HeldOut, open_subject
from thinwire.soma.throughput import Rounds, measure_speed

KEYS = {"byte_forwards_per_s", "flops_per_s", "peak_flops_per_s", "fraction_of_peak", "implementation", "device"}
QUICK = ("--repeats", "2", "--windows", "2", "--threads", "1")


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(peak, "PEAK_ROUNDS", 1000)
    monkeypatch.setattr(peak, "MATRIX_SIZE", 64)
    return Path(shutil.copytree(tiny_run, tmp_path / "run"))


def test_json_is_one_object_and_the_file(run: Path, here) -> None:
    outcome = here("measure", "throughput", run, *QUICK, "--json")
    assert outcome.status == 0, outcome.err
    record = json.loads(outcome.out)
    assert record == json.loads((run / "results/throughput.json").read_text())
    assert record.keys() >= KEYS
    assert (record["implementation"], record["threads"]) == ("numba", 1)
    operations, training, inference = record["operations_per_byte"], record["training"], record["inference"]
    for rates in (record, training, inference):
        assert rates["flops_per_s"] == pytest.approx(rates["byte_forwards_per_s"] * operations)
        assert rates["fraction_of_peak"] == pytest.approx(rates["flops_per_s"] / record["peak_flops_per_s"])
    assert training["byte_forwards_per_update"] == 4 * 4 * 16  # one-sided: one forward a direction
    assert inference["scored_targets"] == 2 * (128 - 32)
    assert inference["tokens_per_s"] == pytest.approx(inference["scored_targets"] / inference["seconds"])
    assert inference["routing_share"] > 0


def test_the_table(run: Path, here) -> None:
    text = here("measure", "throughput", run, *QUICK).out.decode()
    for words in ("peak", "training", "routed scoring", "scored bytes/s", "1 of 2 experts"):
        assert words in text


def test_a_named_implementation_and_no_training(run: Path) -> None:
    windows = open_subject(run, held_out=HeldOut("test", 2)).windows.windows
    rounds = Rounds(windows=2, repeats=1, implementation="reference")
    record = measure_speed(load_ensemble(run), windows, config=None, rounds=rounds)
    assert record["implementation"] == "reference"
    assert record["training"] is None
    assert record["byte_forwards_per_s"] == record["inference"]["byte_forwards_per_s"]


def test_directions_that_cost_too_much_are_left_out(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = throughput.expert_losses

    def spy(theta, **given):
        asked.append(given["directions"])
        return real(theta, **given)

    monkeypatch.setattr(throughput, "expert_losses", spy)
    monkeypatch.setattr(throughput, "MOST_BYTE_FORWARDS", 2 * 4 * 16)
    throughput.measure_throughput(run, rounds=Rounds(windows=2, repeats=1))
    assert set(asked) == {range(2)}


def test_mistakes(run: Path, here) -> None:
    for flag, words in (("--windows", "nothing to measure"), ("--repeats", "nothing to measure")):
        outcome = here("measure", "throughput", run, flag, "0")
        assert outcome.status == 2
        assert words in outcome.err
    assert here("measure", "throughput", run, "--threads", "-1").status == 2
    assert here("measure", "throughput", run.parent / "absent").status == 2
