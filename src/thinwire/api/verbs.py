"""Which method does the work?  A configuration's type or a run's kind says so; only that method is imported."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from thinwire.base.errors import UserError
from thinwire.base.progress import Progress, Voice
from thinwire.runs.layout import RunFolder
from thinwire.runs.results import keep_result
from thinwire.soma.config import SomaConfig
from thinwire.soma.eggroll_config import EggrollConfig
from thinwire.subspaces.config import SubspacesConfig

Kind = Literal["soma", "eggroll", "subspaces"]
Protocol = Literal["wikitext", "documents"]
RouteMode = Literal["once", "refresh"]


def kind_of(run: Path) -> Kind:
    """Raises UserError where ``run`` is no run folder, or of a method that is not known."""
    folder = RunFolder(run)
    kind: Any = folder.read_config().get("kind")
    if kind not in get_args(Kind):
        fix = "restore config.json from a copy, or use the version of thinwire that made the run"
        raise UserError(f"the run is of an unknown kind: {kind!r}", where=str(folder.config), fix=fix)
    return kind


def train(
    config: SomaConfig | EggrollConfig | SubspacesConfig,
    *,
    data: Path,
    out: Path,
    preset: str = "custom",
    command: str | None = None,
    voice: Voice | None = None,
) -> dict[str, Any]:
    """Train a run on a data folder, or go on with the one that is there.

    Args:
        config: of any method, e.g. a preset's with ``dataclasses.replace``.
        data: a folder that ``prepare`` made.
        out: the run folder.
        preset: the name kept beside the settings.
        command: the command line that goes on with this run, kept for people.
        voice: bars and messages; None is silent.

    Returns:
        The record of the test score; empty on every rank but the first where torchrun started this process.

    Raises:
        ConfigError, UserError, InterruptedRunError, RunFailedError: as the method's ``recipe.train``.
    """
    if isinstance(config, SomaConfig):
        from thinwire.soma import recipe as soma

        return soma.train(config, data=data, out=out, preset=preset, command=command, voice=voice or Voice())
    if isinstance(config, EggrollConfig):
        from thinwire.soma import eggroll_recipe as eggroll

        return eggroll.train(config, data=data, out=out, preset=preset, command=command, voice=voice)
    from thinwire.subspaces import recipe as subspaces

    return subspaces.train(config, data=data, out=out, preset=preset, command=command, voice=voice)


def score(
    run: Path,
    *,
    on: Path | None = None,
    name: str | None = None,
    protocol: Protocol | None = None,
    active_experts: int | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Score a run; nothing is written.

    Args:
        on: a data folder, or a text file or folder; None is the test split of the run's own data.
        name: of the result; by default the text's.
        protocol: how a text is cut; None tells by its first heading.
        active_experts: overrides k of a SOMA run.
        threads: for arithmetic.

    Raises:
        UserError: the run has nothing to score yet, or the text is missing or too short.
    """
    kind = kind_of(run)
    if kind == "soma":
        from thinwire.soma.scoring import score_text

        return score_text(
            run,
            on=on,
            name=name,
            protocol=protocol,
            active_experts=active_experts,
            threads=threads,
            progress=progress,
        )
    if active_experts is not None:
        raise UserError("this run has one model, no experts", where="--active-experts", fix="leave it out")
    if kind == "eggroll":
        from thinwire.soma.eggroll_scoring import score_text as score_eggroll

        return score_eggroll(run, on=on, name=name, protocol=protocol, threads=threads, progress=progress)
    from thinwire.subspaces.scoring import evaluate as score_stock

    return score_stock(run, on=on, name=name, protocol=protocol, threads=threads, progress=progress)


def evaluate(
    run: Path,
    *,
    on: Path | None = None,
    name: str | None = None,
    protocol: Protocol | None = None,
    active_experts: int | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """``score``, its record kept in ``RUN/results/NAME.json`` too; the same arguments and errors."""
    record = score(
        run, on=on, name=name, protocol=protocol, active_experts=active_experts, threads=threads, progress=progress
    )
    keep_result(run, record)
    return record


def load(run: Path) -> Any:
    """What a run has learnt, for ``generate``: a SOMA run's ``Ensemble``, or a subspaces run's ``LanguageModel``.

    Raises:
        UserError: the run has nothing yet, a file is missing or damaged, or it is a control that is only scored.
    """
    kind = kind_of(run)
    if kind == "soma":
        from thinwire.soma.ensemble import load_ensemble

        return load_ensemble(run)
    if kind == "eggroll":
        raise UserError(
            "this is an EGGROLL run, a control that is trained and scored, and writes no text",
            where=str(run),
            fix="score it with thinwire evaluate, or give a run of another method",
        )
    from thinwire.subspaces.language_model import load_language_model

    return load_language_model(run)


def generate(
    model: Any,
    prompt: bytes,
    *,
    num_bytes: int,
    temperature: float = 0.7,
    seed: int = 1,
    route: RouteMode | None = None,
) -> Any:
    """Continue ``prompt`` by ``num_bytes`` bytes; ``prompt`` and ``text`` of the result are bytes.

    Args:
        model: what ``load`` gave.
        temperature: 0 takes the likeliest token; 1 samples from the model as it is.
        seed: the same seed, model and prompt give the same text.
        route: of an ensemble: ``once`` keeps the first choice of experts, ``refresh`` (the default) renews it.

    Raises:
        UserError: ``route`` is given, and the model has no experts.
    """
    if hasattr(model, "route"):
        from thinwire.soma import generate as soma

        return soma.generate(
            model, prompt, num_bytes=num_bytes, temperature=temperature, seed=seed, route=route or "refresh"
        )
    if route is not None:
        raise UserError("this run has one model, nothing is routed", where="--route", fix="leave it out")
    from thinwire.subspaces import generate as subspaces

    return subspaces.generate(model, prompt, num_bytes=num_bytes, temperature=temperature, seed=seed)


def generate_batch(
    model: Any,
    prompts: Sequence[bytes],
    *,
    num_bytes: int,
    temperature: float = 0.7,
    seed: int = 1,
    route: RouteMode | None = None,
    threads: int = 1,
) -> list[Any]:
    """Continue every prompt as ``generate`` would alone, with the same arguments and errors.

    Args:
        threads: an ensemble's texts are shared among so many; those of the same experts are written together.
    """
    if hasattr(model, "route"):
        from thinwire.soma import generate as soma

        return list(
            soma.generate_batch(
                model,
                prompts,
                num_bytes=num_bytes,
                temperature=temperature,
                seed=seed,
                route=route or "refresh",
                threads=threads,
            )
        )
    return [
        generate(model, prompt, num_bytes=num_bytes, temperature=temperature, seed=seed, route=route)
        for prompt in prompts
    ]


def export(run: Path, *, out: Path) -> Any:
    """Write a run's model for other programs: a stock Hugging Face Llama.

    Raises:
        UserError: a SOMA or EGGROLL run, which no other program can read; else as ``subspaces.export.export``.
    """
    names = {"soma": "a SOMA run", "eggroll": "an EGGROLL run"}
    if (kind := kind_of(run)) in names:
        raise UserError(
            f"export covers runs of subspaces presets for now; this is {names[kind]}",
            where=str(run),
            fix="its weights lie in safetensors files already: seed/checkpoints and experts/*/checkpoints",
        )
    from thinwire.subspaces.export import export as export_stock

    return export_stock(run, out=out)
