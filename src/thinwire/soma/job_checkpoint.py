"""What does a job's checkpoint hold?  Weights, Adam's moments and the plateau's state: what its next update needs."""

import math
from typing import Any

import torch

from thinwire.runs import checkpoint
from thinwire.runs.layout import JobFolder
from thinwire.soma.expert_job import ExpertJob, ExpertState, initial_state
from thinwire.soma.model import Expert
from thinwire.soma.plateau import PlateauState
from thinwire.soma.updates import AdamState

CHECKPOINTS_KEPT = 2


def tensors_of(state: ExpertState) -> dict[str, torch.Tensor]:
    """A state's tensors by name."""
    return {
        "theta": state.expert.theta,
        "decoder": state.expert.decoder,
        "body.first": state.body.first,
        "body.second": state.body.second,
        "decoder.first": state.decoder.first,
        "decoder.second": state.decoder.second,
    }


def numbers_of(state: ExpertState) -> dict[str, Any]:
    """All else of a state but for its update, plain."""
    best = state.plateau.best_loss
    return {
        "plateau": state.plateau._asdict() | {"best_loss": best if math.isfinite(best) else None},
        "body_updates": state.body.updates,
        "decoder_updates": state.decoder.updates,
        "device_seconds": state.device_seconds,
    }


def state_of(tensors: dict[str, torch.Tensor], numbers: dict[str, Any], *, update: int) -> ExpertState:
    """The state that ``tensors_of`` and ``numbers_of`` took apart."""
    halvings, best, best_update = (numbers["plateau"][key] for key in PlateauState._fields)
    return ExpertState(
        expert=Expert(tensors["theta"], tensors["decoder"]),
        body=AdamState(tensors["body.first"], tensors["body.second"], numbers["body_updates"]),
        decoder=AdamState(tensors["decoder.first"], tensors["decoder.second"], numbers["decoder_updates"]),
        plateau=PlateauState(halvings, math.inf if best is None else best, best_update),
        update=update,
        device_seconds=numbers["device_seconds"],
    )


def save_state(job: ExpertJob, state: ExpertState, folder: JobFolder) -> None:
    """A checkpoint of the state's update; older ones than the last two are removed."""
    shape = {"width": job.shape.width, "depth": job.shape.depth, "embed_width": job.shape.embed_width}
    meta = {"expert": job.expert, "shape": shape, **numbers_of(state)}
    checkpoint.save(folder.checkpoints, state.update, tensors=tensors_of(state), meta=meta, keep=CHECKPOINTS_KEPT)


def load_state(job: ExpertJob, *, folder: JobFolder, update: int) -> ExpertState:
    """The state of one checkpoint. Raises UserError where it is damaged or of another shape."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors_of(initial_state(job)).items()}
    saved = checkpoint.load(folder.checkpoints, update, shapes=shapes)
    return state_of(saved.tensors, saved.meta, update=saved.update)
