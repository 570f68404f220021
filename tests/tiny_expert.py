"""An expert small enough for finite differences of all its weights, in FP64, and text for it."""

import numpy as np
import torch

from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma.model import Expert

SHAPE = ExpertShape(width=3, depth=1, embed_width=2)


def tiny_expert() -> Expert:
    generator = np.random.default_rng(0)
    theta = torch.from_numpy(0.6 * generator.standard_normal(SHAPE.num_parameters))
    return Expert(theta, torch.from_numpy(generator.standard_normal((256, SHAPE.embed_width))))


def windows(count: int, *, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, 6), dtype=np.uint8))
