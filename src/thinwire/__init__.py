"""Thinwire pretrains language models where the wire is thin: across machines that share little bandwidth, or none.

The command line's verbs as functions on plain objects; a preset's or a run's kind says which method works::

    import thinwire

    thinwire.prepare(["texts/"], out=Path("data"))
    thinwire.train(thinwire.preset("soma-small"), data=Path("data"), out=Path("run"))
    thinwire.evaluate(Path("run"), on=Path("other.txt"))["loss_nats_per_byte"]
    model = thinwire.load(Path("run"))      # a SOMA run's Ensemble, or a LanguageModel
    thinwire.generate(model, b"Once upon", num_bytes=200).text

    thinwire.score_bytes(model, text)       # an ensemble's log p of every byte from index 257 on
    model.route([b"The first bytes of a text"])

    thinwire.train(thinwire.preset("subspaces-small"), data=Path("data"), out=Path("llama"))
    thinwire.evaluate(Path("llama"))["perplexity"]
    thinwire.export(Path("llama"), out=Path("hugging-face"))
    thinwire.measure_traffic(Path("llama"))["is_equal"]     # counted bytes beside the closed form

Names are looked up when they are used, so that ``import thinwire`` is quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thinwire.api.verbs import evaluate, export, generate, generate_batch, load, train
    from thinwire.data.prepare import PrepareOptions, prepare
    from thinwire.experiments.registry import preset
    from thinwire.report.page import write_report
    from thinwire.soma.active_experts import measure_active_experts
    from thinwire.soma.audit import audit
    from thinwire.soma.complementarity import measure_complementarity
    from thinwire.soma.config import SomaConfig
    from thinwire.soma.eggroll_config import EggrollConfig
    from thinwire.soma.ensemble import Ensemble, load_ensemble, score_bytes, score_windows
    from thinwire.soma.measured_variance import measure_variance
    from thinwire.soma.replay import replay
    from thinwire.soma.scoring import loss_matrix
    from thinwire.soma.throughput import measure_throughput
    from thinwire.subspaces.config import SubspacesConfig
    from thinwire.subspaces.language_model import LanguageModel, load_language_model
    from thinwire.subspaces.measured_traffic import measure_traffic

__version__ = "0.1.0"

_HOMES = {
    "evaluate": "thinwire.api.verbs",
    "export": "thinwire.api.verbs",
    "generate": "thinwire.api.verbs",
    "generate_batch": "thinwire.api.verbs",
    "load": "thinwire.api.verbs",
    "train": "thinwire.api.verbs",
    "PrepareOptions": "thinwire.data.prepare",
    "prepare": "thinwire.data.prepare",
    "preset": "thinwire.experiments.registry",
    "write_report": "thinwire.report.page",
    "SomaConfig": "thinwire.soma.config",
    "EggrollConfig": "thinwire.soma.eggroll_config",
    "Ensemble": "thinwire.soma.ensemble",
    "load_ensemble": "thinwire.soma.ensemble",
    "score_bytes": "thinwire.soma.ensemble",
    "score_windows": "thinwire.soma.ensemble",
    "audit": "thinwire.soma.audit",
    "replay": "thinwire.soma.replay",
    "loss_matrix": "thinwire.soma.scoring",
    "measure_active_experts": "thinwire.soma.active_experts",
    "measure_complementarity": "thinwire.soma.complementarity",
    "measure_throughput": "thinwire.soma.throughput",
    "measure_variance": "thinwire.soma.measured_variance",
    "SubspacesConfig": "thinwire.subspaces.config",
    "LanguageModel": "thinwire.subspaces.language_model",
    "load_language_model": "thinwire.subspaces.language_model",
    "measure_traffic": "thinwire.subspaces.measured_traffic",
}

__all__ = [
    "EggrollConfig",
    "Ensemble",
    "LanguageModel",
    "PrepareOptions",
    "SomaConfig",
    "SubspacesConfig",
    "audit",
    "evaluate",
    "export",
    "generate",
    "generate_batch",
    "load",
    "load_ensemble",
    "load_language_model",
    "loss_matrix",
    "measure_active_experts",
    "measure_complementarity",
    "measure_throughput",
    "measure_traffic",
    "measure_variance",
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
