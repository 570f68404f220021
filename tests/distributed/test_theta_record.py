"""Are the thetas and angles in the log those of every chunk, whoever holds it?  Beside a dense pass, by other means."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
import training_cases
from disturbed_runs import EVERY_STEP, records, with_ranks
from training_cases import CODEC, DrawnStream, dense_thetas, trainer_after

from forked_runs import ForkServer
from gloo_ranks import RankPool
from thinwire.comm.group import Group, alone
from thinwire.subspaces.batches import step_sequences
from thinwire.subspaces.config import CodecConfig, SubspacesConfig
from thinwire.subspaces.replica import SIDES, Replica
from thinwire.subspaces.theta_record import theta_record

LAST = 12
"""Six updates after the plug-in: psi has learned."""
PREVIOUS, CHUNK = CODEC, replace(CODEC, theta_source="chunk", uncompressed_layers=(1,))
RANDOM = replace(CODEC, theta_source="random")
SOURCES = pytest.mark.parametrize("codec", [PREVIOUS, CHUNK, RANDOM], ids=lambda codec: codec.theta_source)


def record_on_rank(group: Group, codec: CodecConfig, until: int) -> dict[str, Any]:
    return theta_record(trainer_after(group, training_cases.config(codec=codec), step=until))


def dense_record(replica: Replica, config: SubspacesConfig, *, step: int) -> dict[str, list[dict[str, float]]]:
    """Of the last of the update's two passes, every chunk in one dense pass; angles by SciPy."""
    size = config.sequence
    last = step_sequences(DrawnStream(), config, step=step)[size.batch :]
    attend = dense_thetas(replica, config, last, step=step, first_sequence=size.batch)
    found: dict[str, list[dict[str, float]]] = {"mean_abs_theta": [], "angle_degrees": [], "orthonormality_defect": []}
    for layer in range(config.model.layers):
        here = {side: attend.seen[layer, side] for side in SIDES if (layer, side) in attend.seen}
        found["mean_abs_theta"].append({side: float(rows.abs().mean()) for side, (rows, _) in here.items()})
        found["angle_degrees"].append(
            {
                side: float(
                    np.mean([np.rad2deg(scipy.linalg.subspace_angles(u, replica.bases[layer, side])) for u in frames])
                )
                for side, (_, frames) in here.items()
            }
        )
        eye = {side: torch.eye(frames.shape[-1]) for side, (_, frames) in here.items()}
        found["orthonormality_defect"].append(
            {side: float((frames.mT @ frames - eye[side]).abs().max()) for side, (_, frames) in here.items()}
        )
    return found


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys() == {"mean_abs_theta", "angle_degrees", "orthonormality_defect"}
    for kind, layers in wanted.items():
        for here, there in zip(found[kind], layers, strict=True):
            assert here == pytest.approx(there, rel=1e-7, abs=1e-12), kind


@SOURCES
def test_the_record_is_that_of_all_chunks_on_any_number_of_ranks(codec: CodecConfig, pool: RankPool) -> None:
    config = training_cases.config(codec=codec)
    trainer = trainer_after(alone(), config, step=LAST - 1)
    wanted = dense_record(trainer.replica, config, step=LAST)
    trainer.train_step()
    assert all(size > 1e-3 for layer in wanted["mean_abs_theta"] for size in layer.values())
    assert sum(map(len, wanted["mean_abs_theta"])) == (2 if codec.uncompressed_layers else 4)
    assert_same(theta_record(trainer), wanted)
    for ranks in (2, 3):
        found = pool.run(record_on_rank, codec, LAST, ranks=ranks)
        assert all(each == found[0] for each in found)
        assert_same(found[0], wanted)


@pytest.mark.parametrize(
    ("codec", "until"),
    [(PREVIOUS, 6), (PREVIOUS, 16), (replace(CODEC, theta_source="none"), LAST), (CodecConfig(kind="top_k"), LAST)],
    ids=["before the plug-in", "folded", "no theta", "no subspace"],
)
def test_nothing_is_recorded_where_no_theta_is_at_work(codec: CodecConfig, until: int, pool: RankPool) -> None:
    assert pool.run(record_on_rank, codec, until, ranks=2) == [{}, {}]


def without_the_first(group: Group) -> dict[str, Any]:
    """The chunks of rank 0 are not known any more."""
    trainer = trainer_after(group, training_cases.config(), step=LAST)
    if group.rank == 0:
        trainer.last_attend = None
    return theta_record(trainer)


def test_a_part_of_the_chunks_is_no_record(pool: RankPool) -> None:
    assert pool.run(without_the_first, ranks=2) == [{}, {}]


@pytest.mark.parametrize(("ranks", "source"), [(2, "chunk"), (3, "previous_chunk"), (2, "random")])
def test_a_layer_that_travels_plain_has_an_empty_record(
    ranks: int, source: Any, forks: ForkServer, tiny_data: Path, runs_folder: Path
) -> None:
    codec = replace(EVERY_STEP.codec, theta_source=source, uncompressed_layers=(1,))
    out = runs_folder / f"plain-layer-{ranks}-{source}"
    ended = forks.train(with_ranks(replace(EVERY_STEP, codec=codec), ranks), data=tiny_data, out=out)
    assert ended.status == 0, ended
    found = records(out, "theta")
    assert [record["step"] for record in found] == [6, 12]
    for kind in ("mean_abs_theta", "angle_degrees", "orthonormality_defect"):
        for first, second in (record[kind] for record in found):
            assert first.keys() == {"key", "value"}
            assert second == {}
    assert all(size > 0 for size in found[-1]["mean_abs_theta"][0].values())
