"""Are the GPU's probes, in Triton's interpreter, the reference's bits at every address?"""

import numpy as np
import pytest

from thinwire.base.seeds import StreamKey, stream_key
from thinwire.kernels.sign_probe.api import ProbeAddress, sign_probe, weighted_probe_sum
from thinwire.kernels.sign_probe.cases import CASES, ProbeCase

KEYS = (stream_key(1, "probe", 0), StreamKey(2**32 - 1, 2**31), StreamKey(1, 0))
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@by_name
@pytest.mark.parametrize("key", KEYS)
def test_probes_are_the_reference_bit_for_bit(case: ProbeCase, key: StreamKey) -> None:
    address = ProbeAddress(key, case.update, case.accumulation)
    arguments = {"shape": case.shape, "direction": case.direction}
    triton = sign_probe(address, **arguments, implementation="triton")
    assert triton.dtype == np.int8
    np.testing.assert_array_equal(triton, sign_probe(address, **arguments, implementation="reference"))


@by_name
def test_weighted_sum_is_the_reference_bit_for_bit(case: ProbeCase) -> None:
    num_directions = min(9, 2**32 - case.direction)
    weights = np.random.default_rng(0).standard_normal(num_directions)
    arguments = {
        "address": ProbeAddress(KEYS[0], case.update, case.accumulation),
        "shape": case.shape,
        "first_direction": case.direction,
    }
    triton = weighted_probe_sum(weights, **arguments, implementation="triton")
    assert triton.dtype == np.float64
    np.testing.assert_array_equal(triton, weighted_probe_sum(weights, **arguments, implementation="reference"))
