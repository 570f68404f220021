"""How far are ensembles' estimates from backpropagation's gradient, and what does an update cost?  (Fig. 5)"""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from torch import Tensor

from thinwire.base.seeds import stream_key
from thinwire.data.corpus import Corpus
from thinwire.data.windows import num_windows
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.api import ProbeAddress
from thinwire.reproduction.item import Scale
from thinwire.reproduction.laboratory import LABORATORIES, Laboratory, Stage, ensemble, held_out_windows
from thinwire.reproduction.workplace import Workplace
from thinwire.soma import theory
from thinwire.soma.compute import Compute
from thinwire.soma.config import TrainingConfig
from thinwire.soma.expert_job import ExpertJob, initial_state
from thinwire.soma.expert_update import evaluate_update
from thinwire.soma.model import Expert
from thinwire.soma.stacked_gradients import StackedExperts, stacked_moments
from thinwire.soma.subset_errors import BlockForwards, block_forwards, one_sided_error, subset_error
from thinwire.soma.variance import Reference, Subject, coordinate_groups

FACTORS = (1, 2, 4, 16)
"""n_pert and B, times the base setting's."""
REFERENCES = ("both", "first", "second")
TIMED_UPDATES = 2


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        directions: n_pert of the base setting, and of one set of forwards.
        batch: B of the base setting, and of one block.
        sets: sets of directions, each on blocks of its own.
        reference_windows: of each of two references, by number of experts; other numbers take the first entry.
    """

    directions: int
    batch: int
    sets: int
    reference_windows: tuple[tuple[int, int], ...]

    def windows_of(self, num_experts: int) -> int:
        return dict(self.reference_windows).get(num_experts, self.reference_windows[0][1])

    def together(self, num_experts: int) -> int:
        """Windows of one backward pass: more where the experts are few, and at least eight passes for their spread."""
        return min(max(8, 64 // num_experts), self.windows_of(num_experts) // 8)


EFFORTS: dict[Scale, Effort] = {
    "smoke": Effort(directions=8, batch=2, sets=3, reference_windows=((1, 64),)),
    "cpu": Effort(directions=16, batch=4, sets=6, reference_windows=((1, 8192), (8, 2048), (256, 768))),
    "paper": Effort(directions=64, batch=64, sets=8, reference_windows=((1, 8000), (8, 4000), (256, 1600))),
}


def measure_errors(place: Workplace, num_experts: int, stage: Stage) -> dict[str, Any]:
    """R of one ensemble at the base setting, and along both curves where N = 1 (Eq. 5)."""
    lab, effort = LABORATORIES[place.scale], EFFORTS[place.scale]
    shape = lab.shape(num_experts)
    experts = _distinct(ensemble(place, num_experts=num_experts, stage=stage), stage=stage)
    count, blocks = effort.windows_of(num_experts), FACTORS[-1] if num_experts == 1 else 1
    sets = {"first": count, "second": count, "estimates": effort.sets * blocks * effort.batch}
    windows = held_out_windows(place, sets=sets)
    moments = [
        stacked_moments(experts, shape=shape, windows=windows[name], together=effort.together(num_experts))
        for name in ("first", "second")
    ]
    references = [Reference(moments[0].of(index), moments[1].of(index)) for index in range(len(experts))]
    drawn_blocks = windows["estimates"].reshape(effort.sets, blocks, effort.batch, lab.window_bytes + 1)
    forwards = [
        [
            _forwards(
                place, experts.expert(index), references[index], blocks=drawn, shape=shape, address=addresses[index]
            )
            for index in range(len(experts))
        ]
        for drawn, addresses in zip(drawn_blocks, _addresses(lab, len(experts), effort, stage=stage), strict=True)
    ]
    terms = theory.recorded_terms([coordinate_groups(r.both, shape=shape, is_population=True) for r in references])
    settings = [(1, 1)]
    if num_experts == 1:
        settings += [(factor, 1) for factor in FACTORS[1:]] + [(1, factor) for factor in FACTORS[1:]]
    head = {"num_experts": num_experts, "stage": stage, "updates": lab.updates_of(stage)}
    rows = [head | _row(forwards, references, effort, terms, factors=factors) for factors in settings]
    rows.append(head | _one_sided_row(forwards, references, effort, terms, blocks=blocks))
    return {"rows": rows, "reference": head | _reference_row(references, windows=count)}


def _distinct(experts: StackedExperts, *, stage: Stage) -> StackedExperts:
    """At initialisation all experts are alike: one is measured, and stands for each (appendix K)."""
    return StackedExperts(experts.theta[:1], experts.decoder[:1]) if stage == "initial" else experts


def _addresses(lab: Laboratory, num_experts: int, effort: Effort, *, stage: Stage) -> list[list[ProbeAddress]]:
    """Of every set and expert."""
    keys = [stream_key(lab.seed, "laboratory-error", expert) for expert in range(num_experts)]
    return [[ProbeAddress(key, lab.updates_of(stage), one) for key in keys] for one in range(effort.sets)]


def _forwards(
    place: Workplace,
    expert: Expert,
    reference: Reference,
    *,
    blocks: Tensor,
    shape: ExpertShape,
    address: ProbeAddress,
) -> BlockForwards:
    return block_forwards(
        Subject(expert, shape, LABORATORIES[place.scale].epsilon, threads=place.threads),
        blocks=blocks,
        address=address,
        directions=EFFORTS[place.scale].directions,
        references=np.stack(_means(reference)),
    )


def _means(reference: Reference) -> list[np.ndarray]:
    """In the order of ``REFERENCES``."""
    return [reference.both.mean, reference.first.mean, reference.second.mean]


def _row(
    forwards: list[list[BlockForwards]],
    references: list[Reference],
    effort: Effort,
    terms: theory.NoiseTerms,
    *,
    factors: tuple[int, int],
) -> dict[str, Any]:
    """R of central differences at one n_pert and B: the sets' mean, against each reference, and the closed form."""
    directions, batch = effort.directions * factors[0], effort.batch * factors[1]
    found = {}
    for place, name in enumerate(REFERENCES):
        squares = [float(_means(reference)[place] @ _means(reference)[place]) for reference in references]
        sets = [
            sum(
                subset_error(one, directions=directions, blocks=factors[1], reference=place, squared_reference=square)
                for one, square in zip(of_set, squares, strict=True)
            )
            / sum(squares)
            for of_set in forwards
        ]
        found[name] = np.array(sets)
    predicted = theory.relative_error(terms, directions=directions, batch=batch, difference="central")
    return {
        "difference": "central",
        "n_pert": directions,
        "batch": batch,
        "directions_factor": factors[0],
        "batch_factor": factors[1],
        "relative_error": float(found["both"].mean()),
        "standard_error": float(found["both"].std(ddof=1)) / sqrt(len(found["both"])),
        "predicted": predicted,
        "against_first": float(found["first"].mean()),
        "against_second": float(found["second"].mean()),
    }


def _one_sided_row(
    forwards: list[list[BlockForwards]],
    references: list[Reference],
    effort: Effort,
    terms: theory.NoiseTerms,
    *,
    blocks: int,
) -> dict[str, Any]:
    """R of one-sided differences, all directions of a set on all its blocks; for half the forwards of central ones."""
    squares = [float(reference.both.mean @ reference.both.mean) for reference in references]
    sets = np.array(
        [
            sum(
                one_sided_error(one, reference=0, squared_reference=square)
                for one, square in zip(of_set, squares, strict=True)
            )
            for of_set in forwards
        ]
    ) / sum(squares)
    setting = {"directions": effort.directions, "batch": effort.batch * blocks}
    return {
        "difference": "one_sided",
        "n_pert": effort.directions,
        "batch": effort.batch * blocks,
        "directions_factor": 1,
        "batch_factor": blocks,
        "relative_error": float(sets.mean()),
        "standard_error": float(sets.std(ddof=1)) / sqrt(len(sets)),
        "predicted": theory.relative_error(terms, difference="one_sided", **setting),
    }


def _reference_row(references: list[Reference], *, windows: int) -> dict[str, Any]:
    """How well two references of disjoint text agree (Table 8): of all experts' gradients, one after the other."""
    first, second = (np.concatenate([part(one) for one in references]) for part in (_first, _second))
    cosine = float(first @ second) / sqrt(float(first @ first) * float(second @ second))
    return {
        "reference_windows": windows,
        "cosine_distance": 1 - cosine,
        "loss_nats_per_byte": float(np.mean([one.both.loss_nats_per_byte for one in references])),
        "nu": sum(one.nu * one.squared_gradient for one in references)
        / sum(one.squared_gradient for one in references),
    }


def _first(reference: Reference) -> np.ndarray:
    return reference.first.mean


def _second(reference: Reference) -> np.ndarray:
    return reference.second.mean


def time_step(place: Workplace, num_experts: int, directions_factor: int, batch_factor: int) -> dict[str, Any]:
    """Device-seconds in which every expert is updated once, central differences, each with a head of its own.

    choice: one expert is timed and counts N times, for all of an ensemble are alike; the least of a few updates after
    one that is not counted.
    """
    lab, effort, shards = LABORATORIES[place.scale], EFFORTS[place.scale], Corpus.open(place.data).train
    config = TrainingConfig(
        directions=effort.directions * directions_factor,
        batch=effort.batch * batch_factor,
        window_bytes=lab.window_bytes,
        learning_rate=lab.learning_rate,
        epsilon=lab.epsilon,
        decoder="trained",
    )
    members = np.arange(num_windows(shards, window_bytes=lab.window_bytes))
    job = ExpertJob(
        expert=0,
        seed=lab.seed,
        config=config,
        shape=lab.shape(num_experts),
        start=ensemble(place, num_experts=num_experts, stage="initial").expert(0),
        shards=shards,
        train=members,
        validation=members,
        cluster_window_bytes=lab.window_bytes,
    )
    state, seconds = initial_state(job), []
    for _ in range(1 + TIMED_UPDATES):
        before = state.device_seconds
        state = evaluate_update(job, state, compute=Compute(threads=place.threads)).state
        seconds.append(state.device_seconds - before)
    return {"device_seconds_per_step": num_experts * min(seconds[1:])}
