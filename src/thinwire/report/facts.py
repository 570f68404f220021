"""What do the numbers say?  Sentences and curves computed from the records; nothing is written by hand."""

from collections.abc import Sequence
from typing import NamedTuple

from thinwire.base.units import format_count
from thinwire.report.records import Job, LossMatrix, Run, Score

MAX_EXCEPTIONS = 4
NOT_SCORED = "Nothing is scored yet: there is no test loss, no interval and no baseline to compare with."
BASELINE_NAMES = {"byte_unigram": "byte unigram", "byte_bigram": "byte bigram", "xz": "xz"}


class MeanPoint(NamedTuple):
    """All models of a run at one moment of training."""

    update: int
    byte_forwards: int
    """Aggregate: the seed run's and all experts'."""
    device_seconds: float
    loss_nats_per_byte: float
    """The seed run's validation loss, then the experts' mean, weighted by the size of their clusters."""

    @property
    def loss(self) -> float:
        return self.loss_nats_per_byte

    def cost(self, name: str) -> float:
        """``updates``, ``byte_forwards`` or ``device_seconds``."""
        return float(self.update if name == "updates" else getattr(self, name))


def baseline_name(key: str) -> str:
    return BASELINE_NAMES.get(key, key.replace("_", " "))


def format_loss(loss_nats_per_byte: float) -> str:
    return f"{loss_nats_per_byte:.3f}"


def count_of(count: int, noun: str) -> str:
    """``1 expert``, ``2 experts``."""
    return f"{format_count(float(count))} {noun}{'' if count == 1 else 's'}"


def aggregate_curve(run: Run) -> tuple[MeanPoint, ...]:
    """Validation loss against aggregate cost; experts count only at updates where every one of them was validated."""
    points = [
        MeanPoint(v.update, v.byte_forwards, v.device_seconds, v.loss_nats_per_byte) for v in run.seed_run.validation
    ]
    by_update = [{v.update: v for v in job.validation} for job in run.experts]
    if not by_update or len(by_update) < run.num_experts:
        return tuple(points)
    weights = _expert_weights(run)
    for update in sorted(set.intersection(*(set(found) for found in by_update))):
        records = [found[update] for found in by_update]
        loss = sum(w * v.loss_nats_per_byte for w, v in zip(weights, records, strict=True))
        byte_forwards = run.seed_run.byte_forwards + sum(v.byte_forwards for v in records)
        seconds = run.seed_run.device_seconds + sum(v.device_seconds for v in records)
        points.append(MeanPoint(run.seed_run.last_update + update, byte_forwards, seconds, loss))
    return tuple(points)


def _expert_weights(run: Run) -> list[float]:
    """The clusters' parts of the training windows; equal where they are not known."""
    if run.clusters is not None and len(run.clusters.sizes) == len(run.experts) and sum(run.clusters.sizes) > 0:
        return list(run.clusters.fractions)
    return [1 / len(run.experts)] * len(run.experts)


def score_sentence(score: Score) -> str:
    """How far the ensemble or model lies below, or above, everything it is compared with."""
    others: list[tuple[str, float]] = []
    if score.seed_loss_nats_per_byte is not None:
        others.append(("the seed run's model", score.seed_loss_nats_per_byte))
    if score.single_expert_loss_nats_per_byte:
        others.append(("the best single expert", min(score.single_expert_loss_nats_per_byte)))
    others += [(baseline_name(key), loss) for key, loss in sorted(score.baselines.items(), key=lambda item: item[1])]
    if not others:
        return f"The {score.system}'s loss is {format_loss(score.loss_nats_per_byte)} nats/byte."
    parts = [_difference(score.loss_nats_per_byte, loss, name) for name, loss in others]
    return f"The {score.system}'s loss is {_listed(parts)} (nats/byte)."


def _difference(loss: float, other: float, name: str) -> str:
    gap = other - loss
    if abs(gap) < 0.0005:
        return f"within 0.0005 of {name}"
    return f"{abs(gap):.3f} {'below' if gap > 0 else 'above'} {name}"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def matrix_sentence(matrix: LossMatrix) -> str:
    """Which clusters' own experts are best there, and by how much."""
    count = min(matrix.num_experts, matrix.num_clusters)
    if count == 1:
        return "There is one expert and one cluster, so there is nothing to compare."
    best = matrix.best_experts()
    exceptions = [cluster for cluster in range(count) if best[cluster] != cluster]
    text = f"{count - len(exceptions)} of {count} experts are best on their own cluster"
    shown = [_exception(matrix, cluster, best[cluster]) for cluster in exceptions[:MAX_EXCEPTIONS]]
    if len(exceptions) > MAX_EXCEPTIONS:
        shown.append(f"{len(exceptions) - MAX_EXCEPTIONS} more in matrix.csv")
    if shown:
        text += f"; exception{'s' if len(exceptions) > 1 else ''}: {'; '.join(shown)}"
    return f"{text}. {_margin_sentence(matrix, count)}"


def _exception(matrix: LossMatrix, cluster: int, best: int) -> str:
    there, own = matrix.losses[best][cluster], matrix.losses[cluster][cluster]
    return f"on cluster {cluster} expert {best} is lower ({there:.4f} against {own:.4f})"


def _margin_sentence(matrix: LossMatrix, count: int) -> str:
    margins = []
    for cluster in range(count):
        losses = matrix.column(cluster)
        others = [loss for expert, loss in enumerate(losses) if expert != cluster]
        margins.append(sum(others) / len(others) - losses[cluster])
    margin = sum(margins) / count
    side = "below" if margin >= 0 else "above"
    return f"On average a cluster's own expert lies {abs(margin):.4f} nats/byte {side} the mean of the other experts."


def is_finished(job: Job) -> bool:
    """Whether the log reaches the planned end; the last update is always validated, so it is always logged."""
    return job.planned_updates is None or job.last_update >= job.planned_updates


def early_words(run: Run, score: Score) -> str:
    """At which updates the experts were scored, where that is before the end that is planned now; else nothing."""
    if not score.expert_updates:
        going_on = run.experts and (len(run.experts) < run.num_experts or not all(map(is_finished, run.experts)))
        return "scored before the experts' training ended" if going_on else ""
    planned = max((job.planned_updates or 0 for job in run.experts), default=0)
    planned = max(planned, score.planned_updates or 0)
    low, high = min(score.expert_updates), max(score.expert_updates)
    return f"scored at {_update_range(low, high)} of {planned:,}" if low < planned else ""


def _update_range(low: int, high: int) -> str:
    return f"update {low:,}" if low == high else f"updates {low:,} to {high:,}"


def missing_parts(run: Run) -> tuple[str, ...]:
    """One sentence for everything the run folder does not hold yet, in the order in which a run makes it."""
    if run.method == "eggroll":
        return _missing_of_one_model(run)
    missing = []
    if run.clusters is None:
        missing.append("The clusters are not found yet, so neither their sizes nor their terms are shown.")
    if not run.seed_run.records or not is_finished(run.seed_run):
        missing.append(_seed_position(run))
    missing += _unfinished_experts(run)
    if not run.scores:
        missing.append(NOT_SCORED)
    if run.matrix is None:
        missing.append("The expert × cluster loss matrix is not there yet.")
    if run.sample is None:
        missing.append("No sample has been generated yet.")
    return tuple(missing)


def _missing_of_one_model(run: Run) -> tuple[str, ...]:
    job = next(iter(run.experts), None)
    if job is None or not job.records:
        return ("Training is not started.",)
    missing = [] if run.scores else [NOT_SCORED]
    if not is_finished(job):
        where = f"at update {job.last_update:,} of {job.planned_updates or 0:,}"
        missing.insert(0, f"Training is not finished, {where}.")
    return tuple(missing)


def _unfinished_experts(run: Run) -> list[str]:
    """Which experts have not started, and which have not reached their planned end."""
    started = [job for job in run.experts if job.records]
    experts = count_of(run.num_experts, "expert")
    if not started:
        return [f"None of the {experts} has started."] if run.num_experts else []
    missing = []
    absent = sorted(set(range(run.num_experts)) - {job.expert for job in started})
    if absent:
        missing.append(f"{len(absent)} of {experts} {_has(len(absent))} not started: {_numbered_experts(absent)}.")
    unfinished = [job for job in started if not is_finished(job)]
    if unfinished:
        low, high = min(job.last_update for job in unfinished), max(job.last_update for job in unfinished)
        where = f"at {_update_range(low, high)} of {unfinished[0].planned_updates or 0:,}"
        numbers = _numbered_experts([job.expert for job in unfinished])
        missing.append(f"{len(unfinished)} of {experts} {_has(len(unfinished))} not finished, {where}: {numbers}.")
    return missing


def _has(count: int) -> str:
    return "has" if count == 1 else "have"


def _numbered_experts(numbers: Sequence[int]) -> str:
    """``expert 3``, ``experts 0 to 2, 5 and 6``; ``numbers`` rise."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    words: list[str] = []
    for span in spans:
        words += [f"{span[0]} to {span[-1]}"] if len(span) > 2 else map(str, span)
    return f"expert{'' if len(numbers) == 1 else 's'} {_listed(words)}"


def _seed_position(run: Run) -> str:
    job = run.seed_run
    if job.records:
        return f"The seed run is not finished, at update {job.last_update:,} of {job.planned_updates or 0:,}."
    return "The seed run's log is not there." if run.experts else "The seed run is not started."
