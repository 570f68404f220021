"""Does ``auto`` choose what can run, and does a named implementation never fall back silently?"""

import pytest
import torch

from thinwire.base.errors import UserError
from thinwire.base.seeds import stream_key
from thinwire.kernels import dispatch
from thinwire.kernels.dispatch import choose
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.api import ProbeAddress


def test_auto_is_numba_for_float32_on_the_cpu_only() -> None:
    assert choose("auto", like=torch.zeros(1)) == "numba"
    assert choose("auto", like=torch.zeros(1, dtype=torch.float64)) == "reference"
    assert choose("auto", like=torch.zeros(1, device="meta")) == "reference"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_numba_refuses_other_dtypes(dtype: torch.dtype) -> None:
    with pytest.raises(UserError, match=r"float32 on the CPU[\s\S]*implementation reference"):
        choose("numba", like=torch.zeros(1, dtype=dtype))


def test_numba_refuses_other_devices() -> None:
    with pytest.raises(UserError, match="meta"):
        choose("numba", like=torch.zeros(1, device="meta"))


def test_reference_runs_on_anything() -> None:
    for like in (torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(1, device="meta")):
        assert choose("reference", like=like) == "reference"


@pytest.mark.parametrize("name", ["torch", "", "Numba", "Triton"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UserError, match=r"no implementation[\s\S]*auto, numba, triton, reference"):
        choose(name, like=torch.zeros(1))


def test_expert_losses_passes_the_refusal_on() -> None:
    shape = ExpertShape(width=2, depth=1, embed_width=2)
    with pytest.raises(UserError, match="float32"):
        expert_losses(
            torch.zeros(shape.num_parameters, dtype=torch.float64),
            shape=shape,
            decoder=torch.zeros(256, 2, dtype=torch.float64),
            windows=torch.zeros(1, 2, dtype=torch.uint8),
            address=ProbeAddress(stream_key(0, "probe"), 0),
            directions=range(1),
            epsilon=1e-3,
            implementation="numba",
        )


def test_triton_runs_on_the_cpu_in_its_interpreter_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    assert choose("triton", like=torch.zeros(1)) == "triton"  # the tests run it so
    with pytest.raises(UserError, match=r"CUDA GPU, not torch.float64"):
        choose("triton", like=torch.zeros(1, dtype=torch.float64))
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(UserError, match=r"on a CUDA GPU, not torch.float32 on cpu"):
        choose("triton", like=torch.zeros(1))


def test_triton_named_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "has_triton", lambda: False)
    with pytest.raises(UserError, match=r"needs the package 'triton'[\s\S]*thinwire\[gpu\]"):
        choose("triton", like=torch.zeros(1))
    assert choose("auto", like=torch.zeros(1)) == "numba"


def test_weights_of_triton_belong_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    assert [dispatch.device_for(name).type for name in ("auto", "numba", "reference", "triton")] == ["cpu"] * 4
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert dispatch.device_for("triton").type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="need a CUDA GPU, and PyTorch sees none"):
        dispatch.device_for("triton")
