"""How do gradients move the weights?  AdamW with gradient clipping (section 5.1)."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from thinwire.subspaces.config import OptimizerConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


def make_optimizer(named: Mapping[str, nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    """choice: matrices decay, gains and biases do not; the paper gives one weight decay."""
    decayed = [parameter for parameter in named.values() if parameter.dim() >= 2]
    kept = [parameter for parameter in named.values() if parameter.dim() < 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.beta_1, config.beta_2),
        eps=config.epsilon,
    )


def gradient_norm(parameters: Sequence[nn.Parameter]) -> float:
    """The Euclidean norm of all gradients."""
    return float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))


def apply(
    optimizer: torch.optim.AdamW, parameters: Sequence[nn.Parameter], *, norm: float, learning_rate: float, clip: float
) -> None:
    """Scale the gradients down to ``clip`` where their norm is above it (0 does not clip), and update."""
    if 0 < clip < norm:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(clip / norm)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()


def moments(optimizer: torch.optim.AdamW, named: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The optimizer's state by name: ``NAME.exp_avg``, ``NAME.exp_avg_sq``, ``NAME.step``."""
    found = {}
    for name, parameter in named.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            found[f"{name}.{key}"] = value.detach()
    return found


def load_moments(
    optimizer: torch.optim.AdamW, named: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]
) -> None:
    """Take over ``moments()`` of another time; a parameter that is not among them starts anew."""
    for name, parameter in named.items():
        if f"{name}.step" in tensors:
            state = {key: tensors[f"{name}.{key}"].to(parameter).clone() for key in MOMENTS}
            optimizer.state[parameter] = state | {"step": tensors[f"{name}.step"].clone()}
