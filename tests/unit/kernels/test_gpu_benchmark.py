"""Does the GPU's benchmark refuse to time what is wrong or absent?  Its checks run here in Triton's interpreter."""

import subprocess
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
