"""EGGROLL's time loop on groups of 16 lanes, a member a lane: every weight is read once for all groups of a step.

Groups 2 q and 2 q + 1 are the + and - members of the same 16 pairs, so they share their normals, ``noise[q]``. Lanes
never mix: a member's loss does not depend on which others are evaluated with it.
"""

from typing import NamedTuple, no_type_check

import numpy as np

from thinwire.kernels.compiled import compiled
from thinwire.kernels.eggroll import lane_steps as steps
from thinwire.kernels.expert_shape import VOCABULARY
from thinwire.kernels.lane_products import gemm_set
from thinwire.kernels.lane_rows import LANES, TILE_ROWS, gather_entries, log_probabilities, softmax_sums

NUM_FACTORS = 8
dot, norm, axpy = steps.dot, steps.norm, steps.axpy
linear, noisy_linear = steps.linear, steps.noisy_linear
linear_add, noisy_linear_add = steps.linear_add, steps.noisy_linear_add
gate, noisy_gate = steps.gate, steps.noisy_gate
sigmoid_gate, noisy_sigmoid_gate = steps.sigmoid_gate, steps.noisy_sigmoid_gate
candidate, noisy_candidate = steps.candidate, steps.noisy_candidate
tanh_candidate, noisy_tanh_candidate = steps.tanh_candidate, steps.noisy_tanh_candidate


class Places(NamedTuple):
    """Where everything lies, in floats, as plain integers and int64 arrays.

    Attributes:
        width, depth: d and the number of layers.
        width_pad: rows of a d-sized buffer.
        weights: [depth, 5] in the packed weights: both input products as one, forget_hidden, candidate_hidden, up,
            down.
        a, b: [depth, 6] in a pair's normals, as ``LAYER_MATRICES``.
        vectors: [depth, 4] in a group's vectors, as ``LAYER_VECTORS``.
        norm, head, head_a, head_b, embed_a, embed_b: of the ends.
        noise, group_vectors, state, work: floats of a pair group's normals, a group's vectors, state and workspace.
        x, normal, gate, gated, inputs, hidden, mlp, logits, sums, factors: inside the workspace of a group.
    """

    width: int
    depth: int
    width_pad: int
    weights: np.ndarray
    a: np.ndarray
    b: np.ndarray
    vectors: np.ndarray
    norm: int
    head: int
    head_a: int
    head_b: int
    embed_a: int
    embed_b: int
    noise: int
    group_vectors: int
    state: int
    work: int
    x: int
    normal: int
    gate: int
    gated: int
    inputs: int
    hidden: int
    mlp: int
    logits: int
    sums: int
    factors: int


class Switches(NamedTuple):
    """Rules for the compiled code; 0 or 1, and the factor of the logits before the softmax."""

    perturbed: int
    smooth: int
    resets: int
    logit_factor: float


@compiled
@no_type_check
def _products(
    mix, packed, weights, rows, terms, source, source_start, source_floats, out, out_start, out_floats, groups
):
    """out = W x for every group; a tile of weights stays in the cache meanwhile."""
    for tile in range((rows + TILE_ROWS - 1) // TILE_ROWS):
        at = weights + tile * TILE_ROWS * terms
        for g in range(groups):
            gemm_set(
                mix,
                packed,
                at,
                source,
                source_start + g * source_floats,
                out,
                out_start + g * out_floats + tile * TILE_ROWS * LANES,
                terms,
            )


@compiled
@no_type_check
def _embed(mix, table, p, switches, tokens, t, noise, scales, state, work, entries):
    """x = E[byte] + sigma s a[byte] b; a lane that reads the end of a document starts from a zero state."""
    for g in range(tokens.shape[0]):
        at, q = g * p.work, (g // 2) * p.noise
        for lane in range(LANES):
            byte = np.int64(tokens[g, t, lane])
            entries[lane] = byte * p.width_pad
            if switches.perturbed:
                work[at + p.factors + lane] = scales[3 * (g % 2)] * noise[q + p.embed_a + byte * LANES + lane]
            if switches.resets and byte == 0:
                for r in range(p.state // LANES):
                    state[g * p.state + r * LANES + lane] = 0.0
        gather_entries(mix, entries, 0, table, 0, work, at + p.x, p.width_pad // LANES)
        if switches.perturbed:
            axpy(mix, noise, q + p.embed_b, work, at + p.factors, work, at + p.x, p.width)


@compiled
@no_type_check
def _recurrent(mix, packed, p, switches, layer, groups, noise, scales, vectors, state, work):
    """x += h, the gated recurrent unit of the normalised x."""
    d, row = p.width, LANES
    h0 = layer * p.width_pad * row
    for g in range(groups):
        at = g * p.work
        norm(mix, work, at + p.x, vectors, g * p.group_vectors + p.vectors[layer, 0], work, at + p.normal, d)
    _products(mix, packed, p.weights[layer, 0], 2 * d, d, work, p.normal, p.work, work, p.inputs, p.work, groups)
    _products(mix, packed, p.weights[layer, 1], d, d, state, h0, p.state, work, p.hidden, p.work, groups)
    for g in range(groups):
        at, bias = g * p.work, g * p.group_vectors + p.vectors[layer, 1]
        h, u = g * p.state + h0, at + p.factors
        ends = (vectors, bias, state, h, work, at + p.gate, work, at + p.gated, d)
        if switches.perturbed:
            q, scale = (g // 2) * p.noise, 3 * (g % 2) + 1
            dot(mix, noise, q + p.b[layer, 0], work, at + p.normal, scales, scale, work, u, d)
            dot(mix, noise, q + p.b[layer, 1], work, at + p.normal, scales, scale, work, u + row, d)
            dot(mix, noise, q + p.b[layer, 2], state, h, scales, scale, work, u + 2 * row, d)
            left = (work, at + p.inputs, noise, q + p.a[layer, 0], work, u)
            right = (work, at + p.hidden, noise, q + p.a[layer, 2], work, u + 2 * row)
            if switches.smooth:
                noisy_sigmoid_gate(mix, *left, *right, *ends)
            else:
                noisy_gate(mix, *left, *right, *ends)
        elif switches.smooth:
            sigmoid_gate(mix, work, at + p.inputs, work, at + p.hidden, *ends)
        else:
            gate(mix, work, at + p.inputs, work, at + p.hidden, *ends)
    _products(mix, packed, p.weights[layer, 2], d, d, work, p.gated, p.work, work, p.hidden, p.work, groups)
    for g in range(groups):
        at, bias = g * p.work, g * p.group_vectors + p.vectors[layer, 2]
        h, u = g * p.state + h0, at + p.factors
        ends = (vectors, bias, work, at + p.gate, state, h, work, at + p.x, d)
        product = at + p.inputs + d * row
        if switches.perturbed:
            q, scale = (g // 2) * p.noise, 3 * (g % 2) + 1
            dot(mix, noise, q + p.b[layer, 3], work, at + p.gated, scales, scale, work, u + 3 * row, d)
            left = (work, product, noise, q + p.a[layer, 1], work, u + row)
            right = (work, at + p.hidden, noise, q + p.a[layer, 3], work, u + 3 * row)
            if switches.smooth:
                noisy_tanh_candidate(mix, *left, *right, *ends)
            else:
                noisy_candidate(mix, *left, *right, *ends)
        elif switches.smooth:
            tanh_candidate(mix, work, product, work, at + p.hidden, *ends)
        else:
            candidate(mix, work, product, work, at + p.hidden, *ends)


@compiled
@no_type_check
def _mlp(mix, packed, p, switches, layer, groups, noise, scales, vectors, work):
    """x += W2 W1 norm x."""
    d = p.width
    for g in range(groups):
        at = g * p.work
        norm(mix, work, at + p.x, vectors, g * p.group_vectors + p.vectors[layer, 3], work, at + p.normal, d)
    _products(mix, packed, p.weights[layer, 3], 4 * d, d, work, p.normal, p.work, work, p.mlp, p.work, groups)
    for g in range(groups):
        at = g * p.work
        if switches.perturbed:
            q, u = (g // 2) * p.noise, at + p.factors
            dot(mix, noise, q + p.b[layer, 4], work, at + p.normal, scales, 3 * (g % 2) + 1, work, u, d)
            noisy_linear(mix, work, at + p.mlp, noise, q + p.a[layer, 4], work, u, work, at + p.mlp, 4 * d)
        else:
            linear(mix, work, at + p.mlp, work, at + p.mlp, 4 * d)
    _products(mix, packed, p.weights[layer, 4], d, 4 * d, work, p.mlp, p.work, work, p.hidden, p.work, groups)
    for g in range(groups):
        at = g * p.work
        if switches.perturbed:
            q, u = (g // 2) * p.noise, at + p.factors
            dot(mix, noise, q + p.b[layer, 5], work, at + p.mlp, scales, 3 * (g % 2) + 2, work, u, 4 * d)
            noisy_linear_add(mix, work, at + p.hidden, noise, q + p.a[layer, 5], work, u, work, at + p.x, d)
        else:
            linear_add(mix, work, at + p.hidden, work, at + p.x, d)


@compiled
@no_type_check
def _score(mix, packed, p, switches, tokens, t, noise, scales, vectors, work, losses):
    """losses[g] -= log p(byte t + 1), in FP64 from FP32 logits, maximum and sum."""
    d, groups, log_probability = p.width, tokens.shape[0], np.empty(LANES)
    for g in range(groups):
        at = g * p.work
        norm(mix, work, at + p.x, vectors, g * p.group_vectors + p.norm, work, at + p.normal, d)
    _products(mix, packed, p.head, VOCABULARY, d, work, p.normal, p.work, work, p.logits, p.work, groups)
    for g in range(groups):
        at = g * p.work
        logits, sums = at + p.logits, at + p.sums
        if switches.perturbed:
            q, u = (g // 2) * p.noise, at + p.factors
            dot(mix, noise, q + p.head_b, work, at + p.normal, scales, 3 * (g % 2) + 1, work, u, d)
            noisy_linear(mix, work, logits, noise, q + p.head_a, work, u, work, logits, VOCABULARY)
        else:
            linear(mix, work, logits, work, logits, VOCABULARY)
        if switches.logit_factor != 1.0:
            for k in range(logits, logits + VOCABULARY * LANES):
                work[k] *= np.float32(switches.logit_factor)
        for lane in range(LANES):
            work[sums + 2 * LANES + lane] = work[logits + np.int64(tokens[g, t + 1, lane]) * LANES + lane]
        softmax_sums(mix, work, logits, work, sums, VOCABULARY)
        log_probabilities(mix, work, sums, log_probability, 0)
        for lane in range(LANES):
            losses[g, lane] -= log_probability[lane]


@compiled
@no_type_check
def forward_groups(mix, packed, table, p, switches, tokens, noise, scales, vectors, state, work, losses):
    """Mean losses [groups, 16] in nats per byte; ``state`` ends as the state after the last input byte.

    Args:
        mix: ``(0,)``, one set of shared weights.
        tokens: uint8 [groups, T + 1, 16].
        noise: float32, normals of each pair group in rows of lanes; [1] where nothing is perturbed.
        scales: float32 [6]: sigma s, then divided by each divisor (fan-in d and 4 d), for s = 1 and -1.
        vectors: float32, gains and biases of each group, perturbed already, in rows of lanes.
    """
    groups = tokens.shape[0]
    entries = np.empty(LANES, np.int32)
    losses[:] = 0.0
    for t in range(tokens.shape[1] - 1):
        _embed(mix, table, p, switches, tokens, t, noise, scales, state, work, entries)
        for layer in range(p.depth):
            _recurrent(mix, packed, p, switches, layer, groups, noise, scales, vectors, state, work)
            _mlp(mix, packed, p, switches, layer, groups, noise, scales, vectors, work)
        _score(mix, packed, p, switches, tokens, t, noise, scales, vectors, work, losses)
    losses /= tokens.shape[1] - 1
