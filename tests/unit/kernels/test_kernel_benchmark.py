"""Does the benchmark print the contract's keys, and refuse to print a speed while a kernel is wrong?"""

import csv
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from thinwire.kernels.expert_losses.cases import CASES, LossCase
from thinwire.kernels.expert_shape import ExpertShape

CONTRACT_KEYS = {
    "case",
    "implementation",
    "byte_forwards_per_s",
    "eager_byte_forwards_per_s",
    "speedup_over_eager",
    "fma_peak_flops_per_s",
    "fraction_of_fma_peak",
    "second_core_gain",
}


@pytest.fixture
def bench(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench/kernels.py on a tiny shape."""
    monkeypatch.syspath_prepend(repository / "bench")
    for name in ("peak", "measuring", "sgemm", "kernels"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("kernels")
    monkeypatch.setattr(module, "BENCH_CASES", CASES[1:2])
    monkeypatch.setattr(module, "CASES", CASES[:3])
    monkeypatch.setattr(module, "WIDE_BENCH_CASES", ())
    monkeypatch.setattr(module, "WIDE_CASES", ())
    peak = importlib.import_module("thinwire.kernels.peak")
    monkeypatch.setattr(peak, "PEAK_ROUNDS", 1000)
    monkeypatch.setattr(peak, "MATRIX_SIZE", 64)
    return module


def test_rows_hold_the_contracts_keys_and_agree_with_each_other(
    bench: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--json", "--repeats", "2"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert set(row) >= CONTRACT_KEYS
    assert row["case"] == CASES[1].name
    assert row["speedup_over_eager"] == pytest.approx(row["byte_forwards_per_s"] / row["eager_byte_forwards_per_s"])
    assert row["second_core_gain"] == pytest.approx(row["byte_forwards_per_s"] / row["one_core_byte_forwards_per_s"])
    operations = row["one_core_byte_forwards_per_s"] * CASES[1].shape.operations_per_byte
    assert row["fraction_of_fma_peak"] == pytest.approx(operations / row["fma_peak_flops_per_s"])


def test_wide_experts_are_compared_with_the_products_they_are_made_of(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = LossCase("projections", ExpertShape(width=12, depth=3, embed_width=20), 4, 10, 1)
    monkeypatch.setattr(bench, "WIDE_BENCH_CASES", (case,))
    assert bench.main(["--json", "--repeats", "2", "--only", "wide"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    best = max(row["torch_sgemm_flops_per_s"], row["numpy_sgemm_flops_per_s"])
    assert row["sgemm_flops_per_s"] == best
    done = 2 * (3 * 16 * 12**2 - 4 * 12**2 + 12 * 20 + 256 * 20)  # no block-1 input weights, no projection in
    assert row["fraction_of_sgemm"] == pytest.approx(row["one_core_byte_forwards_per_s"] * done / best)
    assert row["counted_fraction_of_sgemm"] > row["fraction_of_sgemm"]
    assert bench.main(["--repeats", "1", "--only", "wide"]) == 0
    assert "of sgemm" in capsys.readouterr().out
    sgemm = importlib.import_module("sgemm")
    steps, batch = sgemm.CHUNK_STEPS, 4
    operations = sum(product.operations for product in sgemm.products_of(case.shape, batch=batch))
    assert operations == 2 * batch * steps * (3 * 16 - 4) * 12**2


def test_no_speed_is_printed_for_a_wrong_kernel(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    true_losses = bench.losses

    def slightly_wrong(case: object, *, implementation: str, **rest: object) -> object:
        values = true_losses(case, implementation=implementation, **rest)
        return values * (1 + 3e-6) if implementation == "numba" else values

    monkeypatch.setattr(bench, "losses", slightly_wrong)
    for flags in ([], ["--json"]):
        assert bench.main(flags) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "odd batch" in shown.err


def test_zero_repeats_are_refused(bench: ModuleType) -> None:
    with pytest.raises(SystemExit) as caught:
        bench.main(["--repeats", "0"])
    assert caught.value.code == 2


def test_an_unknown_implementation_is_refused(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as caught:
        bench.main(["--implementation", "bogus"])
    assert caught.value.code == 2
    assert "'bogus'" in capsys.readouterr().err
    triton = importlib.import_module("triton")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    assert bench.main(["--implementation", "triton"]) == 2
    shown = capsys.readouterr()
    assert "on a CUDA GPU" in shown.err
    assert shown.out == ""


def test_a_recorded_row_names_commit_case_and_measure(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring = importlib.import_module("measuring")
    monkeypatch.setattr(measuring, "RESULTS", tmp_path)
    assert bench.main(["--json", "--record", "--repeats", "1"]) == 0
    capsys.readouterr()
    assert bench.main(["--json", "--record", "--repeats", "1"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    (path,) = tmp_path.iterdir()
    assert path.stem == measuring.machine_name()
    lines = list(csv.DictReader(path.open()))
    assert {line["case"] for line in lines} == {CASES[1].name}
    assert {line["bench"] for line in lines} == {"kernels"}
    assert all(line["commit"] for line in lines)
    values = [line["value"] for line in lines if line["measure"] == "byte_forwards_per_s"]
    assert len(values) == 2
    assert float(values[-1]) == pytest.approx(printed["byte_forwards_per_s"], rel=1e-5)


def test_the_steps_and_the_rest_make_up_the_whole(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(repository / "bench")
    lane_steps, peak = importlib.import_module("lane_steps"), importlib.import_module("thinwire.kernels.peak")
    monkeypatch.setattr(lane_steps, "BYTES_A_ROUND", 20)
    monkeypatch.setattr(peak, "PEAK_ROUNDS", 1000)
    assert lane_steps.main(["--json", "--repeats", "2"]) == 0
    *steps, whole, at_peak = json.loads(capsys.readouterr().out)
    assert [steps[0]["case"], steps[-1]["case"]] == ["matrix products", "rest"]
    assert sum(step["ns_per_byte"] for step in steps) == pytest.approx(whole["ns_per_byte"])
    assert all(step["ns_per_byte"] > 0 for step in steps[:-1])
    assert at_peak["share"] == pytest.approx(at_peak["ns_per_byte"] / whole["ns_per_byte"])
