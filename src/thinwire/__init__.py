"""Thinwire pretrains language models where the wire is thin: across machines that share little bandwidth, or none.

The command line's verbs as functions on plain objects::

    import thinwire

    thinwire.prepare(["texts/"], out=Path("data"))
    thinwire.train(thinwire.preset("soma-small"), data=Path("data"), out=Path("run"))
    ensemble = thinwire.load_ensemble(Path("run"))
    thinwire.evaluate(Path("run"), on=Path("other.txt"))["loss_nats_per_byte"]
    thinwire.score_bytes(ensemble, text)      # log p of every byte from index 257 on
    ensemble.route([b"The first bytes of a text"])
    thinwire.generate(ensemble, b"Once upon", num_bytes=200).text

Names are looked up when they are used, so that ``import thinwire`` is quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thinwire.data.prepare import PrepareOptions, prepare
    from thinwire.experiments.registry import preset
    from thinwire.report.page import write_report
    from thinwire.soma.config import SomaConfig
    from thinwire.soma.ensemble import Ensemble, load_ensemble, score_bytes, score_windows
    from thinwire.soma.generate import generate
    from thinwire.soma.recipe import train
    from thinwire.soma.replay import replay
    from thinwire.soma.scoring import evaluate, loss_matrix

__version__ = "0.1.0"

_HOMES = {
    "PrepareOptions": "thinwire.data.prepare",
    "prepare": "thinwire.data.prepare",
    "preset": "thinwire.experiments.registry",
    "write_report": "thinwire.report.page",
    "SomaConfig": "thinwire.soma.config",
    "Ensemble": "thinwire.soma.ensemble",
    "load_ensemble": "thinwire.soma.ensemble",
    "score_bytes": "thinwire.soma.ensemble",
    "score_windows": "thinwire.soma.ensemble",
    "generate": "thinwire.soma.generate",
    "train": "thinwire.soma.recipe",
    "replay": "thinwire.soma.replay",
    "evaluate": "thinwire.soma.scoring",
    "loss_matrix": "thinwire.soma.scoring",
}

__all__ = [
    "Ensemble",
    "PrepareOptions",
    "SomaConfig",
    "evaluate",
    "generate",
    "load_ensemble",
    "loss_matrix",
    "prepare",
    "preset",
    "replay",
    "score_bytes",
    "score_windows",
    "train",
    "write_report",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'thinwire' has no attribute '{name}'")
