"""What does a job's checkpoint hold?  Weights, Adam's moments and the plateau's state: what its next update needs."""

import math

import torch

from thinwire.runs import checkpoint
from thinwire.runs.layout import JobFolder
from thinwire.soma.expert_job import ExpertJob, ExpertState, initial_state
from thinwire.soma.model import Expert
from thinwire.soma.plateau import PlateauState
from thinwire.soma.updates import AdamState

CHECKPOINTS_KEPT = 2


def _tensors(state: ExpertState) -> dict[str, torch.Tensor]:
    return {
        "theta": state.expert.theta,
        "decoder": state.expert.decoder,
        "body.first": state.body.first,
        "body.second": state.body.second,
        "decoder.first": state.decoder.first,
        "decoder.second": state.decoder.second,
    }


def save_state(job: ExpertJob, state: ExpertState, folder: JobFolder) -> None:
    """A checkpoint of the state's update; older ones than the last two are removed."""
    best = state.plateau.best_loss
    meta = {
        "expert": job.expert,
        "shape": {"width": job.shape.width, "depth": job.shape.depth, "embed_width": job.shape.embed_width},
        "plateau": state.plateau._asdict() | {"best_loss": best if math.isfinite(best) else None},
        "body_updates": state.body.updates,
        "decoder_updates": state.decoder.updates,
        "device_seconds": state.device_seconds,
    }
    checkpoint.save(folder.checkpoints, state.update, tensors=_tensors(state), meta=meta, keep=CHECKPOINTS_KEPT)


def load_state(job: ExpertJob, *, folder: JobFolder, update: int) -> ExpertState:
    """The state of one checkpoint. Raises UserError where it is damaged or of another shape."""
    shapes = {name: tuple(tensor.shape) for name, tensor in _tensors(initial_state(job)).items()}
    saved = checkpoint.load(folder.checkpoints, update, shapes=shapes)
    tensors, meta = saved.tensors, saved.meta
    halvings, best, best_update = (meta["plateau"][key] for key in PlateauState._fields)
    plateau = PlateauState(halvings, math.inf if best is None else best, best_update)
    return ExpertState(
        expert=Expert(tensors["theta"], tensors["decoder"]),
        body=AdamState(tensors["body.first"], tensors["body.second"], meta["body_updates"]),
        decoder=AdamState(tensors["decoder.first"], tensors["decoder.second"], meta["decoder_updates"]),
        plateau=plateau,
        update=saved.update,
        device_seconds=meta["device_seconds"],
    )
