"""Does training on several ranks follow one process, and do drifted replicas become one model?"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import training_cases
from training_cases import CODEC, SYNC, DrawnStream, Trained, dense_thetas, new_trainer, train, trainer_after

from gloo_ranks import RankPool
from thinwire.base.seeds import stream_key
from thinwire.comm.group import Group, alone
from thinwire.data.tokens import draw_sequences
from thinwire.subspaces.config import CodecConfig, SubspacesConfig, SyncConfig, ThetaSource
from thinwire.subspaces.replica import SIDES
from thinwire.subspaces.rotation import Side
from thinwire.subspaces.schedule import phase_of
from thinwire.subspaces.trainer import THETA_SEQUENCES, Trainer

LAST_COMPRESSED = 15
PHASES = ["warm-up"] * 6 + ["compressed"] * 9 + ["folded"] * 5


def farthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize(
    "codec",
    [CODEC, replace(CODEC, theta_source="chunk", basis="activation"), replace(CODEC, theta_source="random")],
    ids=["previous chunk", "chunk, basis of activations", "random"],
)
def test_summed_gradients_train_like_one_process(codec: CodecConfig, pool: RankPool) -> None:
    """20 updates through three phases; every rank holds the same bits."""
    settings = training_cases.config(codec=codec)
    one = train(alone(), settings)
    assert one.phases == PHASES
    assert one.losses[-1] < one.losses[6] < 0.9 * one.losses[0]
    for ranks in (2, 3):
        found: list[Trained] = pool.run(train, settings, ranks=ranks)
        for step in (1, 6, 7, 15, 16, 20):
            assert farthest(found[0].weights[step], one.weights[step]) < 1e-9
            assert all(farthest(each.weights[step], found[0].weights[step]) == 0.0 for each in found)
        losses = [sum(each) for each in zip(*(each.losses for each in found), strict=True)]
        assert losses == pytest.approx(one.losses, rel=1e-9)
        assert {each.validation for each in found} == {found[0].validation}
        assert found[0].validation == pytest.approx(one.validation, rel=1e-9)


def turned(group: Group, codec: CodecConfig) -> Trainer:
    """Before the fold, with psi's constants moved so far that theta's mean is about 0.6."""
    trainer = trainer_after(group, training_cases.config(codec=codec), step=LAST_COMPRESSED)
    assert trainer.replica.heads is not None
    with torch.no_grad():
        for name, parameter in trainer.replica.heads.named_parameters():
            if name.endswith("bias"):
                parameter += 0.8 if "key" in name else -0.8
    return trainer


def test_the_fold_makes_no_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    """On held-out text, of a model whose thetas spread around a mean far from zero. At zero, the fold makes one."""
    jumps = {}
    for theta in ("mean", "zero"):
        trainer = turned(alone(), replace(CODEC, theta_source="chunk"))
        mean = trainer.measure_theta()
        assert all(float(each.abs().min()) > 0.5 for each in mean.values())
        if theta == "zero":
            monkeypatch.setattr(trainer, "measure_theta", lambda mean=mean: {at: 0 * each for at, each in mean.items()})
        before = trainer.validate().loss
        trainer.change_phase("folded")
        jumps[theta] = abs(trainer.validate().loss - before)
    assert 0.0 < jumps["mean"] < 2e-4
    assert jumps["zero"] > 1e-3


def folded_on_rank(group: Group, codec: CodecConfig) -> dict[tuple[int, Side], torch.Tensor]:
    """The projections of keys and values after the fold."""
    trainer = turned(group, codec)
    trainer.change_phase("folded")
    return {(layer, side): trainer.replica.projection(layer, side).detach() for layer in (0, 1) for side in SIDES}


@pytest.mark.parametrize("source", ["previous_chunk", "chunk"])
def test_the_fold_is_at_thetas_mean(source: ThetaSource, pool: RankPool) -> None:
    """W = U U^T B with U at the mean over all chunks of the eight sequences, which a dense pass finds as well."""
    codec = replace(CODEC, theta_source=source)
    settings, trainer = training_cases.config(codec=codec), turned(alone(), codec)
    drawn = [
        draw_sequences(
            DrawnStream(),
            key=stream_key(settings.seed, "theta-mean"),
            step=index,
            count=1,
            tokens=settings.sequence.tokens,
        )
        for index in range(THETA_SEQUENCES)
    ]
    seen = dense_thetas(trainer.replica, settings, np.concatenate(drawn))
    found = [folded_on_rank(alone(), codec), *pool.run(folded_on_rank, codec, ranks=3)]
    for (layer, side), (thetas, _) in seen.seen.items():
        assert thetas.shape == (THETA_SEQUENCES * settings.sequence.chunks, CODEC.generators)
        weight = trainer.replica.projection(layer, side).detach()
        frame, basis = seen.frame(thetas.mean(dim=0), layer=layer, side=side), trainer.replica.bases[layer, side]
        for folded in found:
            torch.testing.assert_close(folded[layer, side], frame @ frame.mT @ weight, rtol=0, atol=1e-9)
        assert float((frame @ frame.mT @ weight - basis @ basis.mT @ weight).abs().max()) > 1e-2


def averaged(**changes: object) -> SubspacesConfig:
    return training_cases.config(sync=replace(SYNC, every=5, fragments=2, **changes))


@pytest.mark.parametrize(
    "settings",
    [averaged(), averaged(delay=2), averaged(delay=0, rotate=False), averaged(outer="nesterov")],
    ids=["delay 1", "delay 2", "at once", "outer step"],
)
def test_averaged_replicas_drift_and_become_one_model(settings: SubspacesConfig, pool: RankPool) -> None:
    found, again = (pool.run(train, settings, ranks=3) for _ in range(2))
    assert sorted(found[0].weights) == [6, 15, 20]
    for step in found[0].weights:
        assert all(farthest(each.weights[step], found[0].weights[step]) == 0.0 for each in found)
    assert farthest(found[0].drifted, found[1].drifted) > 1e-6
    for one, other in zip(found, again, strict=True):
        assert one.losses == other.losses
        assert all(farthest(one.weights[step], other.weights[step]) == 0.0 for step in one.weights)
    assert sum(each.losses[-1] for each in found) < 0.8 * sum(each.losses[0] for each in found)


def test_ranks_move_over_the_chunks(pool: RankPool) -> None:
    """Where they do not, a run is another one."""
    moving, resting = (pool.run(train, averaged(rotate=rotate), ranks=2)[0] for rotate in (True, False))
    assert moving.losses[:6] == resting.losses[:6]
    assert moving.losses[10:] != resting.losses[10:]


def test_an_outer_step_of_rate_one_is_plain_averaging(pool: RankPool) -> None:
    plain = averaged()
    outer = replace(
        plain,
        sync=SyncConfig(
            every=5, fragments=2, wire="float64", outer="nesterov", outer_learning_rate=1.0, outer_momentum=0.0
        ),
    )
    one, other = (pool.run(train, settings, ranks=2)[0] for settings in (plain, outer))
    assert farthest(one.weights[20], other.weights[20]) < 1e-10


def first_gradients(group: Group, settings: SubspacesConfig) -> tuple[dict[str, torch.Tensor], float]:
    """Of the first update, as this rank used them (nothing is clipped), and their norm as it was said."""
    trainer = new_trainer(group, settings)
    if (phase := phase_of(1, settings)) != "warm-up":
        trainer.change_phase(phase)
    norm = trainer.train_step().gradient_norm
    if trainer.averaging is not None:
        trainer.averaging.close()
    return {name: p.grad for name, p in trainer.named().items() if p.grad is not None}, norm


@pytest.mark.parametrize("warmup_steps", [6, 0], ids=["warm-up", "compressed"])
def test_a_replicas_gradient_stands_for_all_ranks(warmup_steps: int, pool: RankPool) -> None:
    """Each rank's is of the size of the whole gradient, and their mean is the gradient of one process: from equal
    weights, in the first update."""
    settings = averaged()
    settings = replace(
        settings,
        optimizer=replace(settings.optimizer, clip_norm=0.0),
        phases=replace(settings.phases, warmup_steps=warmup_steps),
    )
    whole, norm = first_gradients(alone(), settings)
    for ranks in (2, 3):
        found = pool.run(first_gradients, settings, ranks=ranks)
        for name, gradient in whole.items():
            mean = torch.stack([gradients[name] for gradients, _ in found]).mean(dim=0)
            torch.testing.assert_close(mean, gradient, rtol=0, atol=1e-12)
        for gradients, said in found:
            assert farthest(gradients, whole) > 1e-6
            assert said == pytest.approx(float(torch.stack([g.norm() for g in gradients.values()]).norm()), rel=1e-9)
            assert 0.5 * norm < said < 3.0 * norm
