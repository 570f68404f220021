"""How good is an EGGROLL run, beside what?  Scored on the targets of a SOMA run of the same seed and scoring."""

from pathlib import Path
from typing import Any

from thinwire.base.progress import Progress
from thinwire.data.protocols import Protocol
from thinwire.runs.results import text_name
from thinwire.soma.compute import Compute
from thinwire.soma.eggroll_config import EggrollConfig
from thinwire.soma.eggroll_job import scored_losses
from thinwire.soma.eggroll_run import EggrollRun
from thinwire.soma.score_record import score_record
from thinwire.soma.scored_text import Cut, split_to_score, text_to_score


def cut_of(config: EggrollConfig) -> Cut:
    """Which windows a run is scored on."""
    return Cut(config.scoring, config.prefix_bytes, config.seed)


def score_text(
    root: Path,
    *,
    on: Path | None = None,
    name: str | None = None,
    protocol: Protocol | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Score a run's newest checkpoint; nothing is written (``api.verbs.evaluate`` keeps the record too).

    Args:
        on: a data folder, or a text file or folder; None is the test split of the run's own data.
        name: of the result, a file name without its ending; by default the text's.
        protocol: how a text is cut: ``wikitext`` or ``documents``; None tells by its first heading.

    Raises:
        UserError: the run is not trained, or the text is missing or too short.
    """
    run = EggrollRun.open(root)
    config, cut = run.config, cut_of(run.config)
    theta, compute = run.weights(), Compute(run.config.launch.implementation, threads)
    text = split_to_score(run.open_corpus(), cut) if on is None else text_to_score(on, cut, protocol=protocol)
    losses = scored_losses(theta, text.windows.windows, config=config, compute=compute, progress=progress)
    return score_record(losses, text, cut=cut, bigrams=run.bigrams()) | {
        "name": name or text_name(on),
        "num_experts": 1,
        "active_experts": 1,
        "expert_updates": [run.last_update],
        "planned_updates": config.training.updates,
        "seed_loss_nats_per_byte": None,
        "single_expert_loss_nats_per_byte": None,
    }
