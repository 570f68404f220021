"""Are the fused kernels right where registers are half as wide?  AVX2 is the usual machine; ours may have AVX-512."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

AVX2 = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2,+lzcnt,+f16c",
}
"""With the name alone Numba would still use the registers of this processor."""

CHECK = """
import torch
from thinwire.base.seeds import stream_key
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_losses.cases import CASES, inputs_for
from thinwire.kernels.lane_rows import TILE_ROWS
from thinwire.kernels.sign_probe.api import ProbeAddress

assert TILE_ROWS == 4
address = ProbeAddress(stream_key(1, "probe", 0), 3)
for case in CASES:
    if case.batch not in (4, 5, 17):
        continue
    inputs = inputs_for(case)
    losses = [
        expert_losses(
            torch.tensor(inputs.theta, dtype=dtype), shape=case.shape,
            decoder=torch.tensor(inputs.decoder, dtype=dtype), windows=torch.from_numpy(inputs.windows),
            address=address, directions=range(case.num_directions), epsilon=case.epsilon, implementation=name,
        )
        for name, dtype in (("numba", torch.float32), ("reference", torch.float64))
    ]
    print(float(((losses[0] - losses[1]) / losses[1]).abs().max()))
"""

SCORES = """
import numpy as np
import torch
from thinwire.kernels.expert_losses.cases import CASES, inputs_for
from thinwire.kernels.lane_forward import build_table
from thinwire.kernels.lane_rows import TILE_ROWS
from thinwire.kernels.routed_scores import cpu_impl
from thinwire.kernels.routed_scores.api import routed_scores

assert TILE_ROWS == 4
for case in CASES:
    if case.weights == "extreme" or case.input_bytes > 20:
        continue
    inputs = inputs_for(case)
    windows = np.random.default_rng(1).integers(0, 256, (7, case.input_bytes + 1), dtype=np.uint8)
    scores = []
    for name, dtype, lanes_from in (
        ("numba", torch.float32, 17), ("numba", torch.float32, 1), ("reference", torch.float64, 1)
    ):
        cpu_impl.LANES_FROM = lanes_from
        scores.append(
            routed_scores(
                torch.tensor(inputs.theta, dtype=dtype)[None], shape=case.shape,
                decoder=torch.tensor(inputs.decoder, dtype=dtype), windows=torch.from_numpy(windows),
                experts=torch.zeros(7, 1, dtype=torch.int64), first_target=0, implementation=name,
            )
        )
    streams, lanes, exact = scores
    assert torch.equal(streams, lanes), case.name
    print(float((streams - exact).abs().max()))
machine_code = "".join(build_table.inspect_asm().values())
assert "ymm" in machine_code and "zmm" not in machine_code
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for an x86-64 processor without AVX-512")
def test_scores_of_lanes_and_streams_without_avx_512(tmp_path: Path) -> None:
    environment = os.environ | AVX2 | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SCORES], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    errors = [float(line) for line in done.stdout.split()]
    assert len(errors) >= 5
    assert max(errors) < 1e-5


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for an x86-64 processor without AVX-512")
def test_losses_without_avx_512(tmp_path: Path) -> None:
    environment = os.environ | AVX2 | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", CHECK], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    errors = [float(line) for line in done.stdout.split()]
    assert len(errors) >= 5
    assert max(errors) < 2e-6


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for an x86-64 processor without AVX-512")
def test_functions_without_avx_512(tmp_path: Path) -> None:
    """The bounds of ``test_lanes`` hold for the longer polynomials, too."""
    environment = os.environ | AVX2 | {"NUMBA_CACHE_DIR": str(tmp_path)}
    lanes = Path(__file__).with_name("test_lanes.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(lanes)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " skipped" not in done.stdout
