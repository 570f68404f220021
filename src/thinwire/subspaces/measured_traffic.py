"""Do the bytes that a run counted equal the closed form?  Its log beside ``traffic``, by tag and by phase (3.4).

Keys, values and theta are compared over every interval of the log. Weights that travel behind the training are counted
while they leave, so they are compared where none is on its way.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from thinwire.base.errors import UserError
from thinwire.data.corpus import TOKENIZER_FOLDER
from thinwire.data.encode import Tokenizer
from thinwire.data.tokens import open_tokenizer
from thinwire.runs.layout import RunFolder
from thinwire.subspaces.batches import step_targets
from thinwire.subspaces.config import read_config
from thinwire.subspaces.counted_records import counted_records
from thinwire.subspaces.pass_bytes import EXCHANGED, PassBytes
from thinwire.subspaces.schedule import Phase
from thinwire.subspaces.traffic_log import Interval, LogReader

SYNC = "sync"
COMPARED = (*EXCHANGED, SYNC)


def measure_traffic(run: Path) -> dict[str, Any]:
    """Counted bytes of a run beside the closed form; nothing is written.

    Returns:
        Plain values. ``by_tag``: counted, closed form and whether they are equal, over what can be compared.
        ``phases``: the same for each phase, with the bytes of one update. ``left_out``: intervals that cannot be
        compared, and why.

    Raises:
        UserError: no run of this kind, one that has made no update, or one whose log is damaged.
    """
    folder = RunFolder(run)
    config = read_config(folder)
    closed = PassBytes(config, vocabulary(run))
    reader = LogReader(closed)
    records = list(counted_records(folder.log, config))
    segments = [segment for segment in reader.segments(records) if segment]
    if not segments:
        fix = "give a run that has made an update"
        raise UserError("the log holds no counted bytes", where=str(folder.log), fix=fix)
    intervals = [one for segment in segments for one in segment]
    compared = [one for one in intervals if not one.left_out]
    settled = [span for segment in segments for span in _settled_spans(segment)]
    by_tag = {tag: _beside(tag, compared) for tag in EXCHANGED} | {SYNC: _beside(SYNC, settled)}
    return {
        "kind": "measure-traffic",
        "codec": config.codec.kind,
        "step": intervals[-1].last,
        "planned_steps": config.optimizer.steps,
        "ranks": intervals[-1].ranks,
        "tokens_per_step": step_targets(config, is_warmup=False),
        "vocab_size": closed.vocab_size,
        "is_equal": bool(compared) and all(found["is_equal"] for found in by_tag.values()),
        "by_tag": by_tag,
        "passes": {
            "updates": _counts(_total(one.updates for one in compared)),
            "validations": _counts(_total(one.validations for one in compared)),
            "theta_mean": _counts(_total(one.theta_mean for one in compared)),
            "after_the_last_count": _counts(reader.after_the_last),
        },
        "phases": [
            _phase(phase, intervals, closed=closed)
            for phase in dict.fromkeys(one.phase for one in intervals if one.phase)
        ],
        "sync_updates_compared": sum(one.last - one.after for one in settled),
        "updates_compared": sum(one.last - one.after for one in compared),
        "left_out": [{"after": one.after, "last": one.last, "why": one.left_out} for one in intervals if one.left_out],
        "assumed_sequences": reader.assumed_sequences,
    }


def vocabulary(run: Path) -> int:
    """Of the run's tokenizer: byte pairs where their files are in the run, else bytes."""
    folder = run / TOKENIZER_FOLDER
    kind: Tokenizer = "gpt2" if folder.is_dir() else "byte"
    return open_tokenizer(kind, folder=folder).vocab_size


def main_phase(phases: Iterable[str]) -> Phase | None:
    """The phase whose exchange is the run's own: compressed where there is one; None where all is warm-up."""
    there = set(phases)
    wanted: tuple[Phase, ...] = ("compressed", "plain", "folded")
    return next((phase for phase in wanted if phase in there), None)


def _settled_spans(segment: Sequence[Interval]) -> list[Interval]:
    """The intervals over which counted weights are whole: up to the last one that ends with none on its way."""
    found: list[Interval] = []
    open_now: list[Interval] = []
    is_clean = True
    for one in segment:
        if one.left_out:
            open_now, is_clean = [], False
        elif is_clean:
            open_now.append(one)
        if one.is_settled and not one.left_out:
            found += open_now
            open_now, is_clean = [], True
    return found


def _beside(tag: str, intervals: Sequence[Interval]) -> dict[str, Any]:
    counted = sum(one.counted[tag] for one in intervals)
    closed = sum(one.closed_form[tag] for one in intervals)
    # Weights on their way are counted in a later interval: their sums are compared, everything else one by one.
    equal = counted == closed if tag == SYNC else all(one.counted[tag] == one.closed_form[tag] for one in intervals)
    return {"counted_bytes": counted, "closed_form_bytes": closed, "is_equal": equal}


def _phase(phase: str, intervals: Sequence[Interval], *, closed: PassBytes) -> dict[str, Any]:
    """What was counted in a phase; an update's bytes are means over intervals that hold nothing else."""
    here = [one for one in intervals if one.phase == phase]
    compared = [one for one in here if not one.left_out]
    pure = [one for one in compared if one.has_only_updates]
    num_updates = sum(one.last - one.after for one in pure)
    config, ranks = closed.config, here[-1].ranks
    tokens = step_targets(config, is_warmup=phase == "warm-up")
    counted = _total(one.counted for one in pure)
    exchange = sum(counted[tag] for tag in EXCHANGED) / num_updates if num_updates else None
    plain = closed.plain_update(ranks=ranks) if phase != "warm-up" else 0
    return {
        "phase": phase,
        "first_step": here[0].after + 1,
        "last_step": here[-1].last,
        "ranks": ranks,
        "tokens_per_step": tokens,
        "counted_bytes": _counts(_total(one.counted for one in compared)),
        "closed_form_bytes": _counts(_total(one.closed_form for one in compared)),
        "is_equal": all(_beside(tag, compared)["is_equal"] for tag in EXCHANGED),
        "updates_alone": num_updates,
        "exchange_bytes_per_update": exchange,
        "exchange_bytes_per_token": None if exchange is None else exchange / tokens,
        "closed_form_exchange_bytes_per_update": sum(closed.update(here[-1].last, ranks=ranks).values()),
        "plain_exchange_bytes_per_update": plain,
        "part_of_plain": exchange / plain if exchange is not None and plain else None,
    }


def _total(parts: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return total


def _counts(counts: Counter[str]) -> dict[str, int]:
    return {tag: counts[tag] for tag in COMPARED}
