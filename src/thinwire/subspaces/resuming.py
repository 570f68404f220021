"""Where does a run go on, and with whose moments?  Every rank stands where the newest checkpoint was made."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from thinwire.base.errors import UserError
from thinwire.comm.collectives import barrier, gather_json
from thinwire.subspaces import saving
from thinwire.subspaces.handover import hand_over, together
from thinwire.subspaces.journal import Journal
from thinwire.subspaces.trainer import Trainer

OF_ONE_RANK = ("own.", "averaging.")
"""What only all ranks' parts together may be used for: weights that differ, and an average on its way."""
OF_OWN_CHUNKS = ("theta.",)
"""What another rank must not take over."""


def resume(trainer: Trainer, journal: Journal, *, run: Path, tell: Callable[[str], None]) -> None:
    """Stand where the newest checkpoint was made, or at the beginning. All ranks call this.

    Args:
        trainer: in its team, before any update.
        journal: counts on from there; it writes down that the run was resumed, and who took another's moments.
        run: the run folder.
        tell: messages for people.

    Raises:
        UserError: a file is truncated or altered, or no rank has its part.
    """
    main = trainer.team.main
    steps: list[int] = gather_json(main, saving.last_step(run))
    step = max(steps)
    root = steps.index(step)
    saving.forget_rank_after(run, rank=main.rank, step=step)
    there = together(main, lambda: saving.load_weights(run, step=step) if step and main.rank == root else None)
    if main.rank == root:
        saving.sweep(run)
        saving.cut_log(journal.log, size=int(there.meta["log_bytes"]) if there else 0)
    if step == 0:
        barrier(main)
        journal.go_on_from(seconds=0.0, totals=journal.totals)
        return
    weights, meta = hand_over(main, None if there is None else (there.tensors, there.meta), root=root)
    own = _own_part(trainer, run=run, step=step, ranks_then=int(meta["ranks"]))
    trainer.load_state(step=step, phase=meta["phase"], weights=weights, own=own.tensors)
    journal.go_on_from(seconds=float(meta["seconds"]), totals=meta["wire_bytes"])
    if int(meta["ranks"]) != main.size:
        tell(f"the checkpoint was made by {counted(meta['ranks'])}; its chunks now lie on {main.size}")
    journal.change(main, "resumed", step=step)
    if own.taken_from:
        tell(_words_of_takers(own.taken_from, trainer=trainer, step=step))
        takers, sources = list(own.taken_from), list(own.taken_from.values())
        journal.event(main, "moments of another rank", step=step, members=takers, taken_from=sources)


class _OwnPart(NamedTuple):
    """Moments and averaging of a rank at a checkpoint.

    Attributes:
        tensors: named as in ``Trainer.own_state``.
        taken_from: of every rank that has another's: whose. Equal on all ranks.
    """

    tensors: dict[str, Tensor]
    taken_from: dict[int, int]


def _own_part(trainer: Trainer, *, run: Path, step: int, ranks_then: int) -> _OwnPart:
    """Of this rank; where its machine has none, or the number of ranks is another, of a rank that has one."""
    main = trainer.team.main
    own = together(main, lambda: saving.load_rank(run, rank=main.rank, step=step, ranks_then=ranks_then))
    have = [rank for rank, has in enumerate(gather_json(main, own is not None)) if has]
    if not have:
        _refuse_without_parts(gather_json(main, saving.rank_steps(run, rank=main.rank)), run=run, step=step)
    is_whole = len(have) == main.size == ranks_then
    if len(have) < main.size:
        first, _ = hand_over(main, None if own is None else (own, {}), root=have[0])
        own = first if own is None else own
    assert own is not None
    sources = {rank: (rank if rank in have else have[0]) % ranks_then for rank in range(main.size)}
    taken_from = {rank: source for rank, source in sources.items() if rank != source}
    left_out = (() if is_whole else OF_ONE_RANK) + (OF_OWN_CHUNKS if main.rank in taken_from else ())
    return _OwnPart({name: t for name, t in own.items() if not name.startswith(left_out)}, taken_from)


def _refuse_without_parts(there: Sequence[Sequence[int]], *, run: Path, step: int) -> None:
    is_older = any(other < step for steps in there for other in steps)
    older = f"remove {step:08d}.json and {step:08d}.safetensors in 'checkpoints' to go on from the checkpoint before"
    raise UserError(
        f"no rank has its part of the checkpoint of update {step}",
        where=str(run / "ranks"),
        fix=f"restore the folder 'ranks' from a copy, or {older if is_older else 'begin again in a new run folder'}",
    )


def _words_of_takers(taken_from: dict[int, int], *, trainer: Trainer, step: int) -> str:
    parts = [f"rank {rank} takes those of rank {source}" for rank, source in taken_from.items()]
    if trainer.config.sync.every == 1:
        after = "where gradients are summed they are the same numbers"
    else:
        after = "the ranks' averages begin anew too, so the results will differ from those of an undisturbed run"
    return f"moments of the optimizer at update {step} are missing: {', '.join(parts)}; {after}"


def counted(ranks: int) -> str:
    """In words."""
    return f"{ranks} rank" if ranks == 1 else f"{ranks} ranks"
