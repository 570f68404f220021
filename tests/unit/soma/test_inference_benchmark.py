"""Does the benchmark of inference print the contract's keys, and refuse to print a speed while something is wrong?"""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from thinwire.kernels.expert_losses.cases import CASES
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma.generate import Generated, generate_batch

CONTRACT_KEYS = {
    "case",
    "implementation",
    "byte_forwards_per_s",
    "eager_byte_forwards_per_s",
    "speedup_over_eager",
    "fma_peak_flops_per_s",
    "fraction_of_fma_peak",
    "second_core_gain",
    "routing_share",
}
SHAPE = ExpertShape(width=8)


@pytest.fixture
def bench(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench/inference.py on four tiny experts and short windows of made-up text."""
    monkeypatch.syspath_prepend(repository / "bench")
    for name in ("peak", "measuring", "clustering_text", "inference_ensemble", "inference_checks", "inference"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    text = importlib.import_module("clustering_text")
    monkeypatch.setattr(text, "NUM_WORDS", 2000)
    made = importlib.import_module("inference_ensemble")
    monkeypatch.setattr(made, "NUM_EXPERTS", 4)
    monkeypatch.setattr(made, "ACTIVE_EXPERTS", 2)
    monkeypatch.setattr(made, "FIT_WINDOWS", 256)
    monkeypatch.setattr(made, "SHAPE", SHAPE)
    checks = importlib.import_module("inference_checks")
    monkeypatch.setattr(checks, "CASES", CASES[:2])
    monkeypatch.setattr(checks, "WRITTEN_BYTES", 3)
    module = importlib.import_module("inference")
    whole = made.windows_for

    def short(data: Path | None, *, count: int) -> tuple[np.ndarray, np.ndarray]:
        fitted, windows = whole(data, count=count)
        return fitted, windows[:, :270]

    monkeypatch.setattr(module, "windows_for", short)
    monkeypatch.setattr(module, "SCORED_WINDOWS", (6, 2))
    monkeypatch.setattr(module, "NUM_PROMPTS", 3)
    monkeypatch.setattr(module, "WRITTEN_BYTES", 4)
    monkeypatch.setattr(module, "TRAINING_WINDOWS", 1)
    peak = importlib.import_module("thinwire.kernels.peak")
    monkeypatch.setattr(peak, "PEAK_ROUNDS", 1000)
    monkeypatch.setattr(peak, "MATRIX_SIZE", 64)
    return module


def test_rows_hold_the_contracts_keys_and_agree_with_each_other(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.subprocess, "run", lambda *_, **__: None)  # the fresh process has the benchmark's sizes
    assert bench.main(["--json", "--repeats", "1"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["case"].split(",")[0] for row in rows] == [
        "score 6 windows",
        "score 2 windows",
        "write one text",
        "write 3 texts at once",
    ]
    for row in rows:
        assert set(row) >= CONTRACT_KEYS
        assert row["speedup_over_eager"] == pytest.approx(row["byte_forwards_per_s"] / row["eager_byte_forwards_per_s"])
        operations = row["one_core_byte_forwards_per_s"] * SHAPE.operations_per_byte
        assert row["fraction_of_fma_peak"] == pytest.approx(operations / row["fma_peak_flops_per_s"])
        assert row["routing_share"] > 0
        assert row["tokens_per_s"] == row["byte_forwards_per_s"] / 2
    one, several = rows[2:]
    assert one["first_byte_seconds"] > 0
    later_seconds = 4 / one["one_core_written_bytes_per_s"] - one["first_byte_seconds"]
    assert one["later_bytes_per_s"] == pytest.approx(3 / later_seconds)
    assert "later bytes" in bench.as_text(one)
    assert "later bytes" not in bench.as_text(several)
    # 256 bytes are read and 4 written, by two experts
    assert several["written_bytes_per_s"] == pytest.approx(several["byte_forwards_per_s"] * 4 / 260 / 2)


def test_no_speed_is_printed_where_scores_or_texts_are_wrong(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: Any = sys.modules["inference_checks"]
    true_scores = checks.routed_scores

    def slightly_wrong(*thetas: object, implementation: str, **rest: object) -> object:
        scores = true_scores(*thetas, implementation=implementation, **rest)
        return scores + 2e-5 if implementation == "numba" else scores

    def beside_others(ensemble: object, prompts: list[bytes], **rest: Any) -> list[Generated]:
        first, *others = generate_batch(ensemble, prompts, **rest)
        return [Generated(first.prompt, b"other", first.experts), *others]

    with monkeypatch.context() as patch:
        patch.setattr(checks, "routed_scores", slightly_wrong)
        assert bench.main(["--json"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "nats away from FP64" in shown.err
    monkeypatch.setattr(checks, "generate_batch", beside_others)
    assert bench.main([]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "a text written beside others" in shown.err


def test_a_fresh_process_writes_the_first_byte(bench: ModuleType, tmp_path: Path) -> None:
    made: Any = sys.modules["inference_ensemble"]
    fitted, windows = made.windows_for(None, count=1)
    ensemble = made.make_ensemble(fitted)
    made.save(ensemble, tmp_path)
    again = made.load_saved(tmp_path)
    prompt = windows[0, :256].tobytes()
    assert bench.generate(again, prompt, num_bytes=1) == bench.generate(ensemble, prompt, num_bytes=1)


def test_zero_repeats_are_refused(bench: ModuleType) -> None:
    with pytest.raises(SystemExit) as caught:
        bench.main(["--repeats", "0"])
    assert caught.value.code == 2


def test_a_wrong_option_ends_with_status_2(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        bench.main(["--implementation", "bogus"])
    assert caught.value.code == 2
    assert "'bogus'" in capsys.readouterr().err
    assert bench.main(["--data", str(tmp_path / "absent")]) == 2
    shown = capsys.readouterr()
    assert "there is no such data folder" in shown.err
    assert shown.out == ""
