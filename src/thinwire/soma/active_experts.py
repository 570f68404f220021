"""How many experts should answer?  Loss of one trained ensemble for every k from 1 to N (appendix N.2, Fig. 16).

No weight changes: for each window the router's k nearest experts answer, and their probabilities are averaged
(Eq. 1). Expert operations grow with k; routing is the same for every k and is not counted here.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from thinwire.base.bootstrap import interval
from thinwire.base.progress import Progress
from thinwire.soma.every_expert import HeldOut, Readings, Subject, open_subject, read_by_all


def measure_active_experts(
    root: Path, *, held_out: HeldOut | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """The sweep as a record of plain values; writes nothing.

    ``sweep`` holds for each k the loss with its document-bootstrap interval and the expert operations a byte;
    ``part_of_gain`` how much of the way from k = 1 to the best k each k goes (None where k = 1 is the best).

    Raises:
        UserError: as ``open_subject``.
    """
    held_out = held_out or HeldOut()
    subject = open_subject(root, held_out=held_out)
    losses = losses_for_every_k(subject, held_out=held_out, progress=progress)
    return {
        "kind": "measure-active-experts",
        "split": held_out.split,
        "windows": len(losses),
        "scored_targets": len(losses) * _targets(subject),
        "num_experts": subject.ensemble.num_experts,
        "routed_experts": subject.ensemble.active_experts,
        "expert_updates": subject.expert_updates,
        **_sweep(subject, losses),
    }


def losses_for_every_k(
    subject: Subject, *, held_out: HeldOut, progress: Progress | None = None
) -> Float64[np.ndarray, "n N"]:
    """Mean loss of each window, nats per byte, where the first 1, 2, ..., N experts of its route answer."""
    losses = np.empty((len(subject.windows.windows), subject.ensemble.num_experts))
    for part in read_by_all(
        subject.ensemble, subject.windows.windows, order="routed", held_out=held_out, progress=progress
    ):
        losses[part.windows] = _running_mixtures(part)
    return losses


def _running_mixtures(part: Readings) -> Float64[np.ndarray, "n N"]:
    """-log of sum_{j<=k} w_j p_j / sum_{j<=k} w_j, averaged over a window's bytes.

    Every k takes a prefix of the same order, and where a prompt is too short to route, the prior of those k experts
    divided by its sum, as the router does.
    """
    weighted = part.scores + np.log(part.weights)[..., None]
    mixed = np.logaddexp.accumulate(weighted, axis=1)
    return np.log(np.cumsum(part.weights, axis=1)) - mixed.mean(axis=-1)


def _sweep(subject: Subject, losses: np.ndarray) -> dict[str, Any]:
    means, groups = losses.mean(axis=0), subject.windows.documents

    def between(values: np.ndarray) -> list[float]:
        return list(interval(values, groups, draws=subject.bootstrap_draws, seed=subject.config_seed))

    best = int(means.argmin())
    gain = means[0] - means[best]
    operations = subject.ensemble.shape.operations_per_byte
    rows = []
    for column, loss in enumerate(means.tolist()):
        row: dict[str, Any] = {
            "active_experts": column + 1,
            "loss": loss,
            "ci95": between(np.ascontiguousarray(losses[:, column])),
            "expert_operations_per_byte": (column + 1) * operations,
            "part_of_gain": float((means[0] - loss) / gain) if gain > 0 else None,
        }
        if column:
            row["below_one_expert_ci95"] = between(losses[:, 0] - losses[:, column])
        rows.append(row)
    return {"sweep": rows, "best_active_experts": best + 1, "gain_of_best": float(gain)}


def _targets(subject: Subject) -> int:
    return int(subject.windows.windows.shape[1]) - 1 - subject.ensemble.prefix_bytes
