"""What does the inference benchmark run?  256 experts with random weights and a router fitted on text."""

from pathlib import Path

import numpy as np
import torch

from clustering_text import windows_drawn, windows_of_corpus
from thinwire.base.seeds import numpy_generator
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma.clusters import fit_router
from thinwire.soma.config import ClusterConfig
from thinwire.soma.ensemble import Ensemble
from thinwire.soma.router import Router

NUM_EXPERTS = 256
ACTIVE_EXPERTS = 4
FIT_WINDOWS = 16_384
SHAPE = ExpertShape(width=32)
PREFIX_BYTES = 256
SEED = 20


def windows_for(data: Path | None, *, count: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [FIT_WINDOWS, 1024] to fit on and [count, 1025] to score, none of the former among them."""
    total = FIT_WINDOWS + count
    windows = windows_drawn(count=total) if data is None else windows_of_corpus(data, count=total)
    scored = np.pad(windows[FIT_WINDOWS:], ((0, 0), (0, 1)), constant_values=ord(" "))
    return windows[:FIT_WINDOWS], scored


def make_ensemble(windows: np.ndarray) -> Ensemble:
    config = ClusterConfig(num_clusters=NUM_EXPERTS, sample_windows=len(windows))
    router = fit_router(lambda some: windows[some], num_windows=len(windows), config=config, seed=SEED)
    generator = numpy_generator(SEED, "inference-weights")
    largest = 1 / np.sqrt(SHAPE.width)
    thetas = generator.uniform(-largest, largest, (NUM_EXPERTS, SHAPE.num_parameters)).astype(np.float32)
    decoder = 0.1 * generator.standard_normal((256, SHAPE.embed_width)).astype(np.float32)
    return _ensemble(thetas, decoder, router)


def _ensemble(thetas: np.ndarray, decoder: np.ndarray, router: Router) -> Ensemble:
    return Ensemble(
        thetas=torch.from_numpy(thetas),
        decoder=torch.from_numpy(decoder.astype(np.float32)),
        shape=SHAPE,
        router=router,
        active_experts=ACTIVE_EXPERTS,
        prefix_bytes=PREFIX_BYTES,
    )


def save(ensemble: Ensemble, folder: Path) -> None:
    """For a fresh process."""
    ensemble.router.save(folder)
    np.save(folder / "thetas.npy", ensemble.thetas.numpy())
    np.save(folder / "decoder.npy", ensemble.decoder.numpy())


def load_saved(folder: Path) -> Ensemble:
    return _ensemble(np.load(folder / "thetas.npy"), np.load(folder / "decoder.npy"), Router.load(folder))
