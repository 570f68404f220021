"""Does the GPU's benchmark refuse to time what is wrong or absent?  Its checks run here in Triton's interpreter."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch

from thinwire.kernels.expert_losses.cases import LossCase
from thinwire.kernels.expert_shape import ExpertShape

TINY = LossCase("tiny", ExpertShape(width=3, depth=1, embed_width=3), 2, 2, 2)


@pytest.fixture
def gpu(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(repository / "bench"))
    import gpu

    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    return gpu


def test_without_a_gpu_nothing_is_measured(
    gpu: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 1
    output = capsys.readouterr()
    assert "no CUDA device" in output.err
    assert output.out == ""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--precisions", "ieee,tf16"], "no precision 'tf16'"),
        (["--precisions", ""], "no precision ''"),
        (["--repeats", "0"], "at least 1"),
        (["--out", "/nowhere/at/all"], "is no folder"),
    ],
)
def test_a_wrong_option_ends_with_status_2(
    gpu: ModuleType, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        gpu.main(flags)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["probes", "tf32x3", "wide"])
def test_no_speed_is_printed_while_anything_is_wrong(
    gpu: ModuleType, broken: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failures(precision: str, *, cases: Sequence[LossCase]) -> list[str]:
        is_wrong = precision == broken or (broken == "wide" and cases[0].shape.width > 100)
        return [f"{broken} is wrong"] if is_wrong else []

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "failures", failures)
    monkeypatch.setattr(gpu, "probe_failures", lambda: ["probes is wrong"] if broken == "probes" else [])
    monkeypatch.setattr(gpu, "derivative_errors", lambda precisions: dict.fromkeys(precisions, 0.0))
    monkeypatch.setattr(gpu, "peak_flops_per_s", lambda **_: 1e12)
    for row in ("loss_row", "routing_row", "eager_row"):
        monkeypatch.setattr(gpu, row, lambda *_, **__: pytest.fail("a speed was measured"))
    for flags in ([], ["--json"]):
        assert gpu.main([*flags, "--precisions", "ieee,tf32x3,tf32"]) == 1
        output = capsys.readouterr()
        assert f"{broken} is wrong" in output.err
        assert "ms" not in output.out


def test_checks_pass_and_can_fail(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.failures("ieee", cases=[TINY]) == []
    monkeypatch.setattr(gpu, "RELATIVE_TOLERANCE", -1.0)
    assert "relative error" in gpu.failures("ieee", cases=[TINY])[0]


def test_derivative_errors_are_small_where_products_are_exact(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "DERIVATIVE_CASE", TINY._replace(epsilon=1e-3))
    errors = gpu.derivative_errors(["ieee", "fp16x3"])
    assert 0 < errors["ieee"] < 1e-2
    assert 0 < errors["fp16x3"] < 1e-2


def test_a_row_has_the_keys_of_the_contract(gpu: ModuleType) -> None:
    row = gpu.row_of(
        "case", [0.2, 0.1, 0.4], byte_forwards=1e6, shape=ExpertShape(width=32), peaks={"fp32": 4e12, "tf32": 8e12}
    )
    assert row["byte_forwards_per_s"] == pytest.approx(5e6)
    assert row["flops_per_s"] == pytest.approx(5e6 * 81_920)
    assert row["fraction_of_fp32_product"] == pytest.approx(5e6 * 81_920 / 4e12)
    assert row["seconds_spread"] == pytest.approx(1.5)
    assert "of FP32" in gpu.as_text(row)


def test_the_script_is_sound_shell(repository: Path) -> None:
    subprocess.run(["bash", "-n", str(repository / "bench" / "gpu.sh")], check=True)
