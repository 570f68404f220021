"""Does the router put text where the fitted pipeline puts it, stay the same saved and loaded, and refuse damage?"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from thinwire.base.errors import UserError
from thinwire.soma.router import COLD_BYTES, Router

TOPICS = ("ocean whale ship sail harbour wave", "flour sugar oven butter bread dough", "court judge law statute appeal")
TEXTS = [" ".join(topic.split() * 2) for topic in TOPICS]


def small_router(*, sizes: tuple[int, ...] = (50, 30, 20)) -> Router:
    """Three topics, each on its own axis of word space, one centroid each."""
    vectorizer = TfidfVectorizer(sublinear_tf=True, stop_words="english", dtype=np.float32)
    rows = vectorizer.fit_transform(TEXTS).toarray()
    mean = (rows @ rows.T).mean(axis=0).astype(np.float32)
    points = rows @ rows.T - mean
    return Router(
        vocabulary=tuple(vectorizer.get_feature_names_out().tolist()),
        idf=vectorizer.idf_,
        components=rows,
        mean=mean,
        centroids=(points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32),
        cluster_sizes=np.array(sizes, np.int64),
        top_terms=(("whale",), ("bread", "dough"), ("court",)),
        settings={"num_clusters": 3, "seed": 1},
    )


def test_embedding_equals_the_plain_pipeline() -> None:
    router = small_router()
    vectorizer = TfidfVectorizer(sublinear_tf=True, stop_words="english").fit(TEXTS)
    texts = ["the whale and the ship met a judge of the court", "butter butter bread"]
    expected = vectorizer.transform(texts).toarray() @ router.components.T.astype(np.float64) - router.mean
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(router.embed([t.encode() for t in texts]), expected, atol=1e-6)


def test_nearest_is_the_topic() -> None:
    router = small_router()
    assert router.nearest([t.encode() for t in TEXTS]).tolist() == [0, 1, 2]
    assert router.nearest([b"the oven is hot", b"an appeal to the judge", b"a wave"]).tolist() == [1, 2, 0]


def test_invalid_utf8_is_passed_over() -> None:
    router = small_router()
    clean = b"bread and dough in the oven, says the judge of bread"
    np.testing.assert_array_equal(router.embed([b"\xff\xfe " + clean + b" \xe2\x82"]), router.embed([clean]))


def test_routes_are_nearest_first_with_equal_weights() -> None:
    routes = small_router().route([b"dough in the oven and bread for the judge, says the law"], active_experts=2)
    assert routes.experts.tolist() == [[1, 2]]
    assert routes.similarity[0, 0] > routes.similarity[0, 1]
    assert routes.weights.tolist() == [[0.5, 0.5]]
    assert routes.is_cold.tolist() == [False]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    router = small_router()
    prefixes = [f"{a} {b} judge oven".encode() * 2 for a in TEXTS[0].split() for b in TEXTS[1].split()]
    together = router.route(prefixes, active_experts=3)
    for i, prefix in enumerate(prefixes):
        alone = router.route([prefix], active_experts=3)
        np.testing.assert_array_equal(alone.experts[0], together.experts[i])
        np.testing.assert_array_equal(alone.similarity[0], together.similarity[i])


@pytest.mark.parametrize(
    "prefix", [b"", b"whale", b"x" * (COLD_BYTES - 1), b"zzz qqq " * 40, b"\xff" * 256, b"the of and " * 9]
)
def test_cold_prefixes_use_the_prior(prefix: bytes) -> None:
    routes = small_router(sizes=(20, 50, 30)).route([prefix, TEXTS[0].encode()], active_experts=2)
    assert routes.is_cold.tolist() == [True, False]
    assert routes.experts[0].tolist() == [1, 2]
    np.testing.assert_allclose(routes.weights[0], [50 / 80, 30 / 80], rtol=1e-12)
    np.testing.assert_allclose(routes.weights.sum(axis=1), 1.0, rtol=1e-12)


def test_a_prefix_of_just_enough_bytes_is_routed() -> None:
    prefix = b"whale".ljust(COLD_BYTES)
    assert small_router().route([prefix], active_experts=1).is_cold.tolist() == [False]


def test_ties_go_to_the_lower_index() -> None:
    router = small_router(sizes=(10, 10, 10))
    assert router.route([b""], active_experts=3).experts.tolist() == [[0, 1, 2]]
    twins = dataclasses.replace(router, centroids=router.centroids[[2, 1, 1]])
    assert twins.route([TEXTS[1].encode()], active_experts=2).experts.tolist() == [[1, 2]]
    assert twins.nearest([TEXTS[1].encode()]).tolist() == [1]


@pytest.mark.parametrize("active_experts", [0, -1, 4])
def test_wrong_number_of_active_experts(active_experts: int) -> None:
    with pytest.raises(UserError, match="choose 1 to 3"):
        small_router().route([b""], active_experts=active_experts)


def test_single_needs_no_fitting() -> None:
    router = Router.single()
    routes = router.route([b"", b"anything at all"], active_experts=1)
    assert routes.experts.tolist() == [[0], [0]]
    assert routes.weights.tolist() == [[1.0], [1.0]]
    assert not routes.is_cold.any()
    assert router.nearest([b"a", b""]).tolist() == [0, 0]
    assert router.prior.tolist() == [1.0]


@pytest.mark.parametrize("router", [small_router(), Router.single(num_windows=7)], ids=["three", "single"])
def test_saved_and_loaded_is_the_same(router: Router, tmp_path: Path) -> None:
    router.save(tmp_path / "router")
    loaded = Router.load(tmp_path / "router")
    for name in ("idf", "components", "mean", "centroids", "cluster_sizes", "prior"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(router, name))
    assert loaded.vocabulary == router.vocabulary
    assert loaded.top_terms == router.top_terms
    assert loaded.settings == router.settings
    texts = [t.encode() for t in TEXTS]
    np.testing.assert_array_equal(loaded.embed(texts), router.embed(texts))


def test_arrays_in_any_memory_order_are_saved_right(tmp_path: Path) -> None:
    router = small_router()
    dataclasses.replace(router, components=np.asfortranarray(router.components)).save(tmp_path)
    np.testing.assert_array_equal(Router.load(tmp_path).components, router.components)


def test_the_record_says_what_a_reader_needs(tmp_path: Path) -> None:
    small_router().save(tmp_path)
    record = json.loads((tmp_path / "router.json").read_text())
    assert record["num_clusters"] == 3
    assert record["cluster_sizes"] == [50, 30, 20]
    assert record["cluster_fractions"] == [0.5, 0.3, 0.2]
    assert record["top_terms"][1] == ["bread", "dough"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["router.json", "router.safetensors"]


def test_with_sizes_changes_the_prior_alone() -> None:
    measured = small_router().with_sizes(np.array([1, 1, 2], np.int64))
    assert measured.prior.tolist() == [0.25, 0.25, 0.5]
    assert measured.vocabulary == small_router().vocabulary


@pytest.mark.parametrize("name", ["router.json", "router.safetensors"])
def test_damage_is_refused(name: str, tmp_path: Path) -> None:
    small_router().save(tmp_path)
    whole = (tmp_path / name).read_bytes()
    position = whole.index(b"whale") if name.endswith("json") else len(whole) - 3
    flipped = bytearray(whole)
    flipped[position] ^= 1
    for damaged in (bytes(flipped), whole[: len(whole) // 2], b""):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(UserError, match=name):
            Router.load(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match=name):
        Router.load(tmp_path)


@pytest.mark.parametrize(
    "foreign", ["[]", "{}", '{"format": "thinwire-router-0"}', '{"format": "thinwire-router-1"}', "3"]
)
def test_foreign_json_is_refused(foreign: str, tmp_path: Path) -> None:
    (tmp_path / "router.json").write_text(foreign)
    with pytest.raises(UserError):
        Router.load(tmp_path)


def test_arrays_of_another_router_are_refused(tmp_path: Path) -> None:
    small_router().save(tmp_path / "a")
    Router.single().save(tmp_path / "b")
    (tmp_path / "b" / "router.safetensors").replace(tmp_path / "a" / "router.safetensors")
    with pytest.raises(UserError, match="different runs"):
        Router.load(tmp_path / "a")
