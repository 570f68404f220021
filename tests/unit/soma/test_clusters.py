"""Are windows divided by subject, every window once, the held-out part fixed and exact, and mistakes explained?"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from thinwire.base.errors import UserError
from thinwire.soma import clusters
from thinwire.soma.clusters import ReadWindows, assign, fit_router, sample_indices, split_members
from thinwire.soma.config import ClusterConfig
from thinwire.soma.router import Router
from thinwire.soma.text_features import distinctive_terms, fit_features

TOPICS = (
    "ocean whale ship sail harbour wave captain anchor",
    "flour sugar oven butter bread dough kitchen recipe",
    "court judge statute appeal lawyer jury verdict trial",
    "neuron tissue blood artery kidney surgeon patient cell",
)
WINDOW_BYTES = 256
CONFIG = ClusterConfig(num_clusters=4, window_bytes=WINDOW_BYTES, components=16, iterations=20, min_documents=2)


def topic_windows(num_windows: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Windows of random words of one topic each: uint8 [n, 256] and the topics."""
    generator = np.random.default_rng(seed)
    topics = generator.integers(0, len(TOPICS), num_windows)
    windows = np.zeros((num_windows, WINDOW_BYTES), np.uint8)
    for window, topic in zip(windows, topics, strict=True):
        text = " ".join(generator.choice(TOPICS[topic].split(), 40)).encode()[:WINDOW_BYTES]
        window[: len(text)] = np.frombuffer(text, np.uint8)
    return windows, topics


def reader(windows: np.ndarray) -> ReadWindows:
    return lambda indices: windows[indices]


def purity(found: np.ndarray, truth: np.ndarray) -> float:
    return sum(np.bincount(truth[found == j]).max() for j in np.unique(found)) / len(truth)


def test_topics_are_found_named_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    windows, topics = topic_windows(400)
    router = fit_router(reader(windows), num_windows=400, config=CONFIG, seed=1)
    monkeypatch.setattr(clusters, "CHUNK_WINDOWS", 64)
    assignment = assign(reader(windows), router=router, num_windows=400)
    assert purity(assignment, topics) > 0.9  # balance takes a few from the larger topics
    for cluster, terms in enumerate(router.top_terms):
        topic = np.bincount(topics[assignment == cluster]).argmax()
        assert set(terms[:6]) <= set(TOPICS[topic].split())
    measured = router.with_sizes(np.bincount(assignment, minlength=4))
    assert measured.cluster_sizes.sum() == 400
    np.testing.assert_allclose(measured.prior, np.bincount(assignment) / 400, rtol=1e-12)


def test_the_same_seed_gives_the_same_router_and_a_saved_one_assigns_alike(tmp_path: Path) -> None:
    windows, _ = topic_windows(200)
    first = fit_router(reader(windows), num_windows=200, config=CONFIG, seed=3)
    second = fit_router(reader(windows.copy()), num_windows=200, config=CONFIG, seed=3)
    for name in ("idf", "components", "mean", "centroids", "cluster_sizes"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    first.save(tmp_path)
    assignment = assign(reader(windows), router=first, num_windows=200)
    np.testing.assert_array_equal(assign(reader(windows), router=Router.load(tmp_path), num_windows=200), assignment)


@pytest.mark.parametrize("threads", [2, 3, 9])
def test_threads_do_not_change_the_assignment(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    windows, _ = topic_windows(150)
    router = fit_router(reader(windows), num_windows=150, config=CONFIG, seed=1)
    monkeypatch.setattr(clusters, "CHUNK_WINDOWS", 20)
    alone = assign(reader(windows), router=router, num_windows=150)
    np.testing.assert_array_equal(assign(reader(windows), router=router, num_windows=150, threads=threads), alone)


def test_an_error_while_reading_reaches_the_caller() -> None:
    windows, _ = topic_windows(50)
    router = fit_router(reader(windows), num_windows=50, config=CONFIG, seed=1)

    def fail(indices: np.ndarray) -> np.ndarray:
        raise OSError(f"{len(indices)} windows are unreadable")

    with pytest.raises(OSError, match="unreadable"):
        assign(fail, router=router, num_windows=50, threads=2)


def test_only_the_sample_is_read_and_settings_say_so() -> None:
    windows, _ = topic_windows(300)
    seen: list[int] = []

    def read(indices: np.ndarray) -> np.ndarray:
        seen.extend(indices.tolist())
        return windows[indices]

    router = fit_router(read, num_windows=300, config=dataclasses.replace(CONFIG, sample_windows=90), seed=1)
    assert len(seen) == len(set(seen)) == 90
    assert router.settings["sampled_windows"] == 90
    assert router.settings["seed"] == 1
    assert sample_indices(300, 90, seed=1).tolist() == seen
    assert sample_indices(300, 90, seed=2).tolist() != seen


def test_few_words_lower_the_components() -> None:
    windows, _ = topic_windows(100)
    router = fit_router(reader(windows), num_windows=100, config=dataclasses.replace(CONFIG, components=500), seed=1)
    assert router.components.shape == (len(router.vocabulary) - 1, len(router.vocabulary))
    assert router.settings["components"] == 500
    assert router.settings["fitted_components"] == len(router.vocabulary) - 1


def test_one_cluster_reads_nothing() -> None:
    def read(indices: np.ndarray) -> np.ndarray:
        raise AssertionError(indices)

    router = fit_router(read, num_windows=9, config=ClusterConfig(num_clusters=1), seed=0)
    assert assign(read, router=router, num_windows=9).tolist() == [0] * 9
    assert router.cluster_sizes.tolist() == [9]


def test_windows_without_words_go_to_one_cluster_and_do_not_bend_the_fit() -> None:
    windows, topics = topic_windows(200)
    mixed = np.concatenate([windows, np.full((100, WINDOW_BYTES), 0xFF, np.uint8)])
    router = fit_router(reader(mixed), num_windows=300, config=CONFIG, seed=1)
    assignment = assign(reader(mixed), router=router, num_windows=300)
    assert purity(assignment[:200], topics) > 0.85
    assert len(set(assignment[200:].tolist())) == 1
    assert router.cluster_sizes.sum() == 200


def test_fewer_windows_than_clusters() -> None:
    windows, _ = topic_windows(3)
    with pytest.raises(UserError, match="3 windows, fewer than the 4 clusters"):
        fit_router(reader(windows), num_windows=3, config=CONFIG, seed=0)


@pytest.mark.parametrize("byte", [0xFF, ord("a"), 0])
def test_no_words_at_all(byte: int) -> None:
    windows = np.full((20, WINDOW_BYTES), byte, np.uint8)
    with pytest.raises(UserError, match=r"lower clusters\.min_documents"):
        fit_router(reader(windows), num_windows=20, config=CONFIG, seed=0)


@pytest.mark.parametrize("min_documents", [51, 1000])
def test_words_too_rare_for_min_documents(min_documents: int) -> None:
    windows, _ = topic_windows(50)
    with pytest.raises(UserError, match=f"at least {min_documents} of the 50 sampled windows"):
        fit_router(
            reader(windows), num_windows=50, config=dataclasses.replace(CONFIG, min_documents=min_documents), seed=0
        )


def test_fewer_windows_with_words_than_clusters() -> None:
    windows, _ = topic_windows(20)
    windows[3:] = 0
    with pytest.raises(UserError, match="4 clusters apart"):
        fit_router(reader(windows), num_windows=20, config=dataclasses.replace(CONFIG, min_documents=1), seed=0)


def test_an_empty_cluster_is_reported() -> None:
    windows, _ = topic_windows(100)
    router = fit_router(reader(windows), num_windows=100, config=CONFIG, seed=1)
    beaten = dataclasses.replace(router, centroids=router.centroids[[0, 1, 2, 0]])
    with pytest.raises(UserError, match=r"cluster 3; the sizes are .*\n.*\n.*fewer clusters than 4"):
        assign(reader(windows), router=beaten, num_windows=100)


@pytest.mark.parametrize("num_members", [2, 3, 50, 150, 151, 5_000, 40_000])
@pytest.mark.parametrize("fraction", [0.01, 0.3, 1e-6, 0.5])
def test_split_is_exact_disjoint_and_complete(num_members: int, fraction: float) -> None:
    assignment = np.zeros(3 * num_members, np.int32)
    assignment[np.random.default_rng(0).permutation(3 * num_members)[:num_members]] = 1
    members = split_members(assignment, cluster=1, validation_fraction=fraction, seed=7)
    wanted = min(max(round(fraction * num_members), 1), num_members - 1)
    assert len(members.validation) == wanted
    together = np.sort(np.concatenate([members.train, members.validation]))
    np.testing.assert_array_equal(together, np.flatnonzero(assignment == 1))
    assert np.all(np.diff(members.train) > 0)
    assert np.all(np.diff(members.validation) > 0)


def test_split_is_of_the_seed_and_holds_out_neighbours_together() -> None:
    assignment = np.zeros(40_000, np.int32)
    first = split_members(assignment, cluster=0, validation_fraction=0.01, seed=1)
    np.testing.assert_array_equal(
        split_members(assignment, cluster=0, validation_fraction=0.01, seed=1).validation, first.validation
    )
    other = split_members(assignment, cluster=0, validation_fraction=0.01, seed=2)
    assert len(np.intersect1d(first.validation, other.validation)) < 100
    runs, sizes = np.unique(first.validation // 16, return_counts=True)
    assert len(runs) == 25
    assert sizes.tolist() == [16] * 25


def test_a_small_cluster_is_validated_on_several_places() -> None:
    members = split_members(np.zeros(1000, np.int32), cluster=0, validation_fraction=0.02, seed=1)
    places = 1 + np.count_nonzero(np.diff(members.validation) > 1)
    assert len(members.validation) == 20
    assert places >= 8


def test_splits_of_one_purpose_nest_and_of_two_do_not() -> None:
    assignment = np.zeros(40_000, np.int32)
    small = split_members(assignment, cluster=0, validation_fraction=0.01, seed=1).validation
    large = split_members(assignment, cluster=0, validation_fraction=0.1, seed=1).validation
    other = split_members(assignment, cluster=0, validation_fraction=0.1, seed=1, purpose="seed-sample").validation
    assert np.isin(small, large).all()
    assert np.isin(small, other).mean() < 0.35  # 25 runs, each with chance 0.1


@pytest.mark.parametrize("num_members", [0, 1])
def test_a_cluster_of_one_window_cannot_be_split(num_members: int) -> None:
    assignment = np.ones(10, np.int32)
    assignment[:num_members] = 0
    with pytest.raises(UserError, match=f"cluster 0 has {num_members} windows"):
        split_members(assignment, cluster=0, validation_fraction=0.01, seed=1)


def test_distinctive_terms_leave_out_common_words_and_numbers() -> None:
    texts = ["common whale 100", "common whale 100", "common bread 200", "common bread 200"]
    features = fit_features(texts, max_features=99, min_documents=1, num_components=3, seed=0)
    terms = distinctive_terms(features.rows, np.array([0, 0, 1, 1]), vocabulary=features.vocabulary, num_clusters=2)
    assert terms == (("whale",), ("bread",))
