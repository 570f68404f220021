"""EGGROLL on the CPU: members lie in SIMD lanes, one product serves all, normals are drawn per chunk and forgotten."""

import math
from typing import NamedTuple, no_type_check

import numpy as np

from thinwire.kernels.compiled import compiled
from thinwire.kernels.eggroll.lane_forward import NUM_FACTORS, Places, Switches, forward_groups
from thinwire.kernels.eggroll.noise import NoiseAddress, normal_table
from thinwire.kernels.eggroll.shape import (
    LAYER_MATRICES,
    LAYER_VECTORS,
    NORMALS_PER_BLOCK,
    EggrollRules,
    EggrollShape,
    divisor,
)
from thinwire.kernels.expert_shape import VOCABULARY
from thinwire.kernels.lane_layout import aligned_floats, pad
from thinwire.kernels.lane_rows import LANES, TILE_ROWS
from thinwire.kernels.philox_lanes import philox_lanes
from thinwire.kernels.threads import for_each

MIX = (0,)
ROW_PAD = 16
GROUPS_BY_WEIGHT_BYTES = ((2**20, 1), (2**23, 2))
GROUPS_OF_LARGER = 8
"""Pair groups (32 members each) of a chunk: weights up to so many bytes, and beyond. Few, so that their normals stay
in the cache between two bytes; several only where the weights themselves come from memory and should serve them all."""


class Layout(NamedTuple):
    """``Places`` of a shape, and where each run of normals goes: int64 [runs, 3], first block, size, first row."""

    places: Places
    runs: np.ndarray


def layout_of(shape: EggrollShape) -> Layout:
    """The padded layout; a row is 16 lanes."""
    d, depth = shape.width, shape.depth
    d_pad, mlp_pad = pad(d, ROW_PAD), pad(4 * d, ROW_PAD)
    row_of, row = {}, 0
    runs = []
    for index, run in enumerate(shape.normal_runs):
        row_of[run.tensor, index % 2] = row * LANES
        runs.append((run.first_block, run.size, row))
        row += pad(run.size, 4)
    names = [[f"layers.{layer}.{name}" for name in LAYER_MATRICES] for layer in range(depth)]
    tiles = [pad(2 * d, ROW_PAD) * d, d_pad * d, d_pad * d, mlp_pad * d, d_pad * 4 * d]
    starts = np.cumsum([0, *(tiles * depth)])
    work_rows = {"x": d_pad, "normal": d_pad, "gate": d_pad, "gated": d_pad, "inputs": pad(2 * d, ROW_PAD) + ROW_PAD}
    work_rows |= {"hidden": d_pad, "mlp": mlp_pad, "logits": VOCABULARY, "sums": 4, "factors": NUM_FACTORS}
    ends = np.cumsum([0, *work_rows.values()]) * LANES
    num_vectors = depth * len(LAYER_VECTORS)
    places = Places(
        width=d,
        depth=depth,
        width_pad=d_pad,
        weights=starts[:-1].reshape(depth, len(tiles)).astype(np.int64),
        a=np.array([[row_of[name, 0] for name in layer] for layer in names], np.int64),
        b=np.array([[row_of[name, 1] for name in layer] for layer in names], np.int64),
        vectors=(np.arange(num_vectors) * d_pad * LANES).reshape(depth, -1),
        norm=num_vectors * d_pad * LANES,
        head=int(starts[-1]),
        head_a=row_of["head", 0],
        head_b=row_of["head", 1],
        embed_a=row_of["embedding", 0],
        embed_b=row_of["embedding", 1],
        noise=row * LANES,
        group_vectors=(num_vectors + 1) * d_pad * LANES,
        state=depth * d_pad * LANES,
        work=int(ends[-1]),
        **{name: int(end) for name, end in zip(work_rows, ends[:-1], strict=True)},
    )
    return Layout(places, np.array(runs, np.int64))


class Weights(NamedTuple):
    """A theta made ready: products' tiles, divided; the embedding's rows; gains and biases [vectors, d_pad]."""

    packed: np.ndarray
    table: np.ndarray
    vectors: np.ndarray


def _tiles(matrix: np.ndarray) -> np.ndarray:
    """[O, K], divided by floor(sqrt(K)), as tiles of ``TILE_ROWS`` rows."""
    rows, terms = matrix.shape
    padded = np.zeros((pad(rows, ROW_PAD), terms), np.float32)
    padded[:rows] = matrix / np.float32(divisor(terms))
    return padded.reshape(-1, TILE_ROWS, terms).transpose(0, 2, 1).ravel()


def prepare(theta: np.ndarray, *, shape: EggrollShape) -> Weights:
    """Pack a theta once for many calls."""
    parts = {slot.name: theta[slot.start : slot.stop].reshape(slot.shape) for slot in shape.slots}
    d, tiles, vectors = shape.width, [], []
    for layer in range(shape.depth):
        of = {name: parts[f"layers.{layer}.{name}"] for name in (*LAYER_MATRICES, *LAYER_VECTORS)}
        tiles.append(_tiles(np.concatenate([of["forget_input"], of["candidate_input"]])))
        tiles += [_tiles(of[name]) for name in LAYER_MATRICES[2:]]
        vectors += [of[name] for name in LAYER_VECTORS]
    tiles.append(_tiles(parts["head"]))
    packed = aligned_floats(sum(map(len, tiles)))
    np.concatenate(tiles, out=packed)
    d_pad = pad(d, ROW_PAD)
    table = aligned_floats(VOCABULARY * d_pad)
    table.reshape(VOCABULARY, d_pad)[:, :d] = parts["embedding"]
    padded = np.zeros((len(vectors) + 1, d_pad), np.float32)
    padded[:, :d] = [*vectors, parts["norm"]]
    return Weights(packed, table, padded)


@compiled
@no_type_check
def fill_normals(
    runs: np.ndarray,
    key_low: int,
    key_high: int,
    pairs: np.ndarray,
    update: int,
    table: np.ndarray,
    start: int,
    out: np.ndarray,
) -> None:
    """Normals of 16 pairs, in rows of lanes from ``start`` on."""
    counters, words = np.zeros((4, LANES), np.uint32), np.empty((4, LANES), np.uint32)
    for lane in range(LANES):
        counters[1, lane] = np.uint32(pairs[lane])
        counters[2, lane] = np.uint32(update)
    for run in range(runs.shape[0]):
        first_block, size, row = runs[run]
        for block in range((size + NORMALS_PER_BLOCK - 1) // NORMALS_PER_BLOCK):
            for lane in range(LANES):
                counters[0, lane] = np.uint32(first_block + block)
            philox_lanes(counters, np.uint64(key_low), np.uint64(key_high), words)
            for k in range(min(NORMALS_PER_BLOCK, size - block * NORMALS_PER_BLOCK)):
                shift = np.uint32(16 * (k % 2))
                at = start + (row + block * NORMALS_PER_BLOCK + k) * LANES
                for lane in range(LANES):
                    out[at + lane] = table[(words[k // 2, lane] >> shift) & np.uint32(0xFFFF)]


@compiled
@no_type_check
def _rows_of_lanes(runs: np.ndarray, lanes: np.ndarray, out: np.ndarray) -> None:
    """Normals in rows of lanes -> one row a pair, [pairs <= 16, num_normals], without the padding."""
    start = 0
    for run in range(runs.shape[0]):
        size, row = runs[run, 1], runs[run, 2]
        for lane in range(out.shape[0]):
            for k in range(size):
                out[lane, start + k] = lanes[(row + k) * LANES + lane]
        start += size


def pair_rows(address: NoiseAddress, *, shape: EggrollShape, pairs: range) -> np.ndarray:
    """float64 [pairs, num_normals]: ``noise.pair_normals``, the same numbers."""
    (p, runs), table = layout_of(shape), normal_table()
    out, lanes = np.empty((len(pairs), shape.num_normals)), aligned_floats(p.noise)
    for first in range(0, len(pairs), LANES):
        numbers = np.array([pairs[min(first + lane, len(pairs) - 1)] for lane in range(LANES)])
        fill_normals(runs, *address.key, numbers, address.update, table, 0, lanes)
        _rows_of_lanes(runs, lanes, out[first : first + LANES])
    return out


@compiled
@no_type_check
def _fill_vectors(plain, products, p, sigma, noise, out):
    """Gains and biases of every group: v + sigma s n m, or v where ``products`` is empty."""
    for g in range(out.shape[0] // p.group_vectors):
        scale = sigma if g % 2 == 0 else -sigma
        for vector in range(plain.shape[0]):
            for r in range(p.width):
                at = g * p.group_vectors + (vector * p.width_pad + r) * LANES
                for lane in range(LANES):
                    value = plain[vector, r]
                    if products.shape[0] > 0:
                        q = (g // 2) * p.noise + r * LANES + lane
                        value += scale * (noise[q + products[vector, 0]] * noise[q + products[vector, 1]])
                    out[at + lane] = value


class Workspace(NamedTuple):
    """Buffers of one chunk of ``pair groups``; zeros behind every count."""

    noise: np.ndarray
    vectors: np.ndarray
    state: np.ndarray
    work: np.ndarray

    @classmethod
    def of(cls, places: Places, *, groups: int, pair_groups: int) -> "Workspace":
        return cls(
            noise=aligned_floats(max(pair_groups * places.noise, 1)),
            vectors=aligned_floats(groups * places.group_vectors),
            state=aligned_floats(groups * places.state),
            work=aligned_floats(groups * places.work),
        )


def _switches(rules: EggrollRules, *, perturbed: bool) -> Switches:
    factor = math.log(2) if rules.softmax == "base_2" else 1.0
    smooth, resets = int(rules.activation == "sigmoid_tanh"), int(rules.document_end == "reset")
    return Switches(int(perturbed), smooth, resets, factor)


def _scales(shape: EggrollShape, rules: EggrollRules) -> np.ndarray:
    d = shape.width
    return np.array([s * rules.sigma / by for s in (1, -1) for by in (1, divisor(d), divisor(4 * d))], np.float32)


def _put_state(state: np.ndarray, streams: np.ndarray, out: np.ndarray, *, shape: EggrollShape) -> None:
    """[S, depth, d] by stream [groups, 16] -> rows of lanes."""
    groups, depth, d = len(streams), shape.depth, shape.width
    out[:] = 0.0
    out.reshape(groups, depth, -1, LANES)[:, :, :d] = state[streams].transpose(0, 2, 3, 1)


def pair_groups_at_once(shape: EggrollShape) -> int:
    """How many groups of 16 pairs a chunk holds; memory depends on it, results do not."""
    weight_bytes = 4 * shape.num_parameters
    return next((groups for most, groups in GROUPS_BY_WEIGHT_BYTES if weight_bytes <= most), GROUPS_OF_LARGER)


def losses(
    theta: np.ndarray,
    *,
    shape: EggrollShape,
    rules: EggrollRules,
    windows: np.ndarray,
    address: NoiseAddress,
    pairs: range,
    state: np.ndarray,
    threads: int,
) -> np.ndarray:
    """float64 [n, 2]; arguments as in ``api``. A task is a chunk of pair groups."""
    theta, windows, state = (np.ascontiguousarray(array) for array in (theta, windows, state))
    p, runs = layout_of(shape)
    weights, table = prepare(theta, shape=shape), normal_table()
    switches, scales = _switches(rules, perturbed=True), _scales(shape, rules)
    first_rows = {run.start: runs[index, 2] * LANES for index, run in enumerate(shape.normal_runs)}
    vector_runs = [run for run in shape.normal_runs if run.tensor.split(".")[-1] in (*LAYER_VECTORS, "norm")]
    products = np.array([first_rows[run.start] for run in vector_runs], np.int64).reshape(-1, 2)
    at_once = pair_groups_at_once(shape)
    result = np.empty((len(pairs), 2))

    def run(first: int, whole: Workspace) -> None:
        count = min(at_once * LANES, len(pairs) - first)
        num_groups = -(-count // LANES)
        lanes = np.minimum(np.arange(num_groups * LANES), count - 1) + first
        numbers = (pairs.start + lanes).reshape(num_groups, LANES)
        for group in range(num_groups):
            fill_normals(runs, *address.key, numbers[group], address.update, table, group * p.noise, whole.noise)
        groups = 2 * num_groups
        streams = np.repeat(numbers % len(windows), 2, axis=0)
        vectors = whole.vectors[: groups * p.group_vectors]
        _fill_vectors(weights.vectors, products, p, np.float32(rules.sigma), whole.noise, vectors)
        start = whole.state[: groups * p.state]
        _put_state(state, streams, start, shape=shape)
        tokens = np.ascontiguousarray(windows[streams].transpose(0, 2, 1))
        means = np.empty((groups, LANES))
        inputs = (MIX, weights.packed, weights.table, p, switches, tokens, whole.noise, scales, vectors)
        forward_groups(*inputs, start, whole.work, means)
        by_pair = means.reshape(num_groups, 2, LANES).transpose(0, 2, 1).reshape(-1, 2)
        result[first : first + count] = by_pair[:count]

    def workspace() -> Workspace:
        return Workspace.of(p, groups=2 * at_once, pair_groups=at_once)

    for_each(range(0, len(pairs), at_once * LANES), run, make_workspace=workspace, threads=threads)
    return result


class Unperturbed(NamedTuple):
    """float64 [rows] mean losses, float32 [rows, depth, d] states."""

    losses: np.ndarray
    state: np.ndarray


def unperturbed(
    theta: np.ndarray,
    *,
    shape: EggrollShape,
    rules: EggrollRules,
    windows: np.ndarray,
    state: np.ndarray,
    threads: int,
) -> Unperturbed:
    """The same network at theta itself, one row a window, as many rows at once as ``losses`` has members."""
    theta, windows, state = (np.ascontiguousarray(array) for array in (theta, windows, state))
    p, _ = layout_of(shape)
    weights, switches = prepare(theta, shape=shape), _switches(rules, perturbed=False)
    nothing, none = np.zeros(1, np.float32), np.empty((0, 2), np.int64)
    at_once = 2 * pair_groups_at_once(shape)
    result = Unperturbed(np.empty(len(windows)), np.empty((len(windows), shape.depth, shape.width), np.float32))

    def run(first: int, whole: Workspace) -> None:
        count = min(at_once * LANES, len(windows) - first)
        groups = -(-count // LANES)
        rows = (np.minimum(np.arange(groups * LANES), count - 1) + first).reshape(groups, LANES)
        vectors, after = whole.vectors[: groups * p.group_vectors], whole.state[: groups * p.state]
        _fill_vectors(weights.vectors, none, p, np.float32(0), nothing, vectors)
        _put_state(state, rows, after, shape=shape)
        tokens = np.ascontiguousarray(windows[rows].transpose(0, 2, 1))
        means = np.empty((groups, LANES))
        inputs = (MIX, weights.packed, weights.table, p, switches, tokens, nothing, _scales(shape, rules), vectors)
        forward_groups(*inputs, after, whole.work, means)
        result.losses[first : first + count] = means.ravel()[:count]
        by_row = after.reshape(groups, shape.depth, -1, LANES)[:, :, : shape.width].transpose(0, 3, 1, 2)
        result.state[first : first + count] = by_row.reshape(-1, shape.depth, shape.width)[:count]

    def workspace() -> Workspace:
        return Workspace.of(p, groups=at_once, pair_groups=0)

    for_each(range(0, len(windows), at_once * LANES), run, make_workspace=workspace, threads=threads)
    return result
