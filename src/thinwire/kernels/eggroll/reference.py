"""What is EGGROLL's forward?  The definition in PyTorch, any dtype: with dense perturbed weights, and by rank one.

``dense_losses`` builds W + sigma s a b^T for one member at a time. ``losses`` shares one product with W among all
members and adds a (b.x): the same numbers for a fraction of the arithmetic.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.kernels.eggroll.noise import NoiseAddress, pair_normals
from thinwire.kernels.eggroll.shape import LIMIT, SMALLEST_SCALE, EggrollRules, EggrollShape, divisor

SIGNS = (1, -1)
PAIRS_AT_ONCE = 64


@dataclass(frozen=True)
class Network:
    """What the time loop asks of a set of weights, dense or perturbed; x is [rows, fan_in].

    Attributes:
        product: (name, x) -> W x, not yet divided or clipped.
        vector: name -> [d] or [rows, d].
        embed: bytes int64 [rows] -> [rows, d].
    """

    product: Callable[[str, Tensor], Tensor]
    vector: Callable[[str], Tensor]
    embed: Callable[[Tensor], Tensor]


def unpack(theta: Tensor, *, shape: EggrollShape) -> dict[str, Tensor]:
    """Views of theta by name."""
    return {slot.name: theta[slot.start : slot.stop].view(slot.shape) for slot in shape.slots}


def factors(normals: Tensor, *, shape: EggrollShape) -> dict[str, tuple[Tensor, Tensor]]:
    """Both runs of every tensor, [..., size] each, of normals [..., num_normals]."""
    found: dict[str, tuple[Tensor, Tensor]] = {}
    runs = iter(shape.normal_runs)
    for first, second in zip(runs, runs, strict=True):
        found[first.tensor] = (
            normals[..., first.start : first.start + first.size],
            normals[..., second.start : second.start + second.size],
        )
    return found


def plain_network(theta: Tensor, *, shape: EggrollShape) -> Network:
    weights = unpack(theta, shape=shape)
    return Network(
        product=lambda name, x: x @ weights[name].mT,
        vector=lambda name: weights[name],
        embed=lambda tokens: weights["embedding"][tokens],
    )


def rank_one_network(theta: Tensor, *, shape: EggrollShape, normals: Tensor, scale: Tensor) -> Network:
    """Row r has weights W + scale_r a_r b_r^T; normals [rows, num_normals], scale [rows, 1]."""
    weights, noise = unpack(theta, shape=shape), factors(normals, shape=shape)

    def product(name: str, x: Tensor) -> Tensor:
        a, b = noise[name]
        return x @ weights[name].mT + scale * a * (b * x).sum(-1, keepdim=True)

    def embed(tokens: Tensor) -> Tensor:
        a, b = noise["embedding"]
        return weights["embedding"][tokens] + scale * a.gather(1, tokens[:, None]) * b

    return Network(product, lambda name: weights[name] + scale * noise[name][0] * noise[name][1], embed)


def perturbed_theta(theta: Tensor, *, shape: EggrollShape, normals: Tensor, scale: float) -> Tensor:
    """theta of one member, dense: W + scale a b^T, vectors v + scale n m; normals [num_normals]."""
    noise = factors(normals, shape=shape)
    parts = []
    for slot in shape.slots:
        first, second = noise[slot.name]
        parts.append((torch.outer(first, second) if len(slot.shape) == 2 else first * second).reshape(-1))
    return theta + scale * torch.cat(parts)


def run(
    network: Network, tokens: Tensor, state: Tensor, *, shape: EggrollShape, rules: EggrollRules
) -> tuple[Tensor, Tensor]:
    """Mean loss of each row in nats per byte, and the state after its last input byte.

    Args:
        tokens: int64 [rows, T + 1].
        state: [rows, depth, d].
    """
    smooth = rules.activation == "sigmoid_tanh"

    def linear(name: str, x: Tensor) -> Tensor:
        return clip(network.product(name, x) / divisor(x.shape[-1]))

    def norm(name: str, x: Tensor) -> Tensor:
        return network.vector(name) * x / x.abs().mean(-1, keepdim=True).clamp_min(SMALLEST_SCALE)

    def layer(at: str, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        normal = norm(f"{at}.recurrent_norm", x)
        f = (
            linear(f"{at}.forget_input", normal)
            + linear(f"{at}.forget_hidden", h)
            + network.vector(f"{at}.forget_bias")
        )
        gate = torch.sigmoid(f) if smooth else (16 * clip(f) + 127) / 256
        c = linear(f"{at}.candidate_input", normal) + linear(f"{at}.candidate_hidden", gate * h)
        c = c + network.vector(f"{at}.candidate_bias")
        h = h + gate * ((torch.tanh(c) if smooth else clip(c)) - h)
        # choice: the residual stream itself is not clipped, as in the real-units form.
        x = x + h
        return x + linear(f"{at}.mlp_down", linear(f"{at}.mlp_up", norm(f"{at}.mlp_norm", x))), h

    states, total = list(state.unbind(1)), torch.zeros(len(tokens), dtype=torch.float64)
    for t in range(tokens.shape[1] - 1):
        if rules.document_end == "reset":
            states = [torch.where(tokens[:, t, None] == 0, torch.zeros_like(h), h) for h in states]
        x = network.embed(tokens[:, t])
        for index in range(shape.depth):
            x, states[index] = layer(f"layers.{index}", x, states[index])
        logits = linear("head", norm("norm", x)) * (math.log(2) if rules.softmax == "base_2" else 1.0)
        chosen = torch.log_softmax(logits.double(), -1).gather(1, tokens[:, t + 1, None])
        total -= chosen[:, 0]
    return total / (tokens.shape[1] - 1), torch.stack(states, 1)


def clip(x: Tensor) -> Tensor:
    return x.clamp(-LIMIT, LIMIT)


def losses(
    theta: Tensor,
    *,
    shape: EggrollShape,
    rules: EggrollRules,
    windows: Tensor,
    address: NoiseAddress,
    pairs: range,
    state: Tensor,
) -> Tensor:
    """float64 [n, 2]; arguments as in ``api``. Pairs in chunks of ``PAIRS_AT_ONCE``."""
    parts = []
    for first in range(0, len(pairs), PAIRS_AT_ONCE):
        some = pairs[first : first + PAIRS_AT_ONCE]
        normals = torch.from_numpy(pair_normals(address, shape=shape, pairs=some)).to(theta.dtype)
        scale = rules.sigma * torch.tensor(SIGNS, dtype=theta.dtype).repeat(len(some))[:, None]
        network = rank_one_network(theta, shape=shape, normals=normals.repeat_interleave(2, 0), scale=scale)
        streams = (torch.tensor(some) % len(windows)).repeat_interleave(2)
        found, _ = run(network, windows[streams].long(), state[streams].to(theta.dtype), shape=shape, rules=rules)
        parts.append(found.view(-1, 2))
    return torch.cat(parts)


def dense_losses(
    theta: Tensor,
    *,
    shape: EggrollShape,
    rules: EggrollRules,
    windows: Tensor,
    address: NoiseAddress,
    pairs: range,
    state: Tensor,
) -> Tensor:
    """As ``losses``, every member's weights built in full: the definition."""
    found = torch.empty(len(pairs), 2, dtype=torch.float64)
    normals = torch.from_numpy(pair_normals(address, shape=shape, pairs=pairs)).to(theta.dtype)
    for index, pair in enumerate(pairs):
        stream = slice(pair % len(windows), pair % len(windows) + 1)
        for column, sign in enumerate(SIGNS):
            member = perturbed_theta(theta, shape=shape, normals=normals[index], scale=sign * rules.sigma)
            network = plain_network(member, shape=shape)
            start = state[stream].to(theta.dtype)
            found[index, column] = run(network, windows[stream].long(), start, shape=shape, rules=rules)[0][0]
    return found
