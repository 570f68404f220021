"""Are the verdicts of figures 6, 16, 17 and Table 9 the stated rules, and do the items leave whole findings?"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny_runs
from thinwire.base.progress import Voice
from thinwire.reproduction import soma_active_experts, soma_inference, soma_wikitext
from thinwire.reproduction.soma_active_experts import active_experts_verdict, complementarity_verdict
from thinwire.reproduction.soma_inference import Case, ensemble_curve, throughput_verdict
from thinwire.reproduction.soma_wikitext import judge
from thinwire.reproduction.workplace import Workplace
from thinwire.soma.config import SomaConfig

CONFIG = replace(tiny_runs.CONFIG, clusters=replace(tiny_runs.CONFIG.clusters, num_clusters=4))


class Trained(Workplace):
    """A workplace whose runs are trained in this process."""

    def run(self, name: str, config: SomaConfig) -> Path:
        folder = self.out / "runs" / name
        if not (folder / "results/done.json").exists():
            tiny_runs.train_in_process(config, data=self.data, out=folder)
        return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.prepared_data(tmp_path_factory.mktemp("items"))


@pytest.fixture
def place(data: Path, tmp_path: Path) -> Workplace:
    return Trained("smoke", tmp_path / "out", "item", data, Voice(), 1)


def sweep(*parts: float, low: float = 0.01) -> list[dict[str, Any]]:
    return [{"part_of_gain": part, "below_one_expert_ci95": [low, 1.0]} for part in parts]


def test_rule_of_figure_16() -> None:
    assert active_experts_verdict(sweep(0, 0.4, 0.5, 0.6, 1.0), best=5) == "agrees"
    assert active_experts_verdict(sweep(0, 0.2, 0.3, 0.5, 1.0), best=5) == "differs"
    assert active_experts_verdict(sweep(0, 0.4, 0.5, 0.9, 1.0, low=-0.001), best=5) == "scale too small to tell"
    assert active_experts_verdict(sweep(0, -1, -2, -3), best=1) == "scale too small to tell"


def test_rule_of_figure_17() -> None:
    assert complementarity_verdict([-2.0, -0.1]) == "agrees"
    assert complementarity_verdict([0.1, 2.0]) == "differs"
    assert complementarity_verdict([-0.1, 0.1]) == complementarity_verdict(None) == "scale too small to tell"


def test_rule_of_table_9() -> None:
    def rows(*, monolith: float, seeds: int, targets: int = 1_250_304) -> list[dict[str, Any]]:
        return [
            {
                "text": text,
                "model": model,
                "seed": seed,
                "loss_nats_per_byte": (2.0 if model == "N = 2" else monolith) + seed / 100,
                "scored_targets": 1_109_760 if text.endswith("valid") else targets,
                "published_windows": True,
            }
            for text in ("own test", "wikitext valid", "wikitext test")
            for model in ("N = 2", "monolith", "EGGROLL")
            for seed in range(seeds)
        ]

    assert judge(rows(monolith=2.1, seeds=3))[0] == "agrees"
    assert judge(rows(monolith=1.9, seeds=3))[0] == "differs"
    assert judge(rows(monolith=2.1, seeds=2))[0] == "scale too small to tell"
    verdict, words = judge(rows(monolith=2.1, seeds=3, targets=1_200_000))
    assert verdict == "differs"
    assert "1.20M scored targets on test" in words
    without = [row for row in rows(monolith=2.1, seeds=3) if row["text"] == "own test"]
    assert judge(without)[0] == "scale too small to tell"


def test_rule_of_figure_6() -> None:
    def rows(*speeds: float, parameters: int = 8_400_000) -> list[dict[str, Any]]:
        return [
            {"num_experts": n, "tokens_per_s": speed, "spread": 0.1, "num_parameters": parameters}
            for n, speed in zip((1, 2, 256), speeds, strict=True)
        ]

    assert throughput_verdict(rows(100, 80, 400)) == "agrees"
    assert throughput_verdict(rows(100, 80, 50)) == "differs"
    assert throughput_verdict(rows(100, 80, 110)) == "scale too small to tell"
    assert throughput_verdict(rows(100, 80, 400, parameters=40_000)) == "scale too small to tell"


def test_figures_16_and_17_read_one_run(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soma_active_experts, "ensemble_config", lambda scale: CONFIG)  # noqa: ARG005
    sixteen, seventeen = (item.find(place) for item in soma_active_experts.ITEMS)
    assert [row["active_experts"] for row in sixteen.rows] == [1, 2, 3, 4]
    assert [path.name for path in (place.out / "runs").iterdir()] == ["ensemble-n8"]
    assert sum(row["kind"] == "pair" for row in seventeen.rows) == 6
    assert sixteen.panels[0].series[0].y == [row["loss_nats_per_byte"] for row in sixteen.rows]
    assert "6 updates each" in sixteen.notes
    monkeypatch.setattr(soma_active_experts, "measure_active_experts", None)  # a second time nothing is measured
    assert soma_active_experts.find_active_experts(place) == sixteen


def test_every_scale_is_a_valid_run() -> None:
    from thinwire.soma.config import check

    for scale in ("smoke", "cpu", "paper"):
        check(soma_active_experts.ensemble_config(scale), where=scale)


def test_wikitext_with_and_without_its_text(place: Workplace, tmp_path: Path) -> None:
    without = soma_wikitext.find_wikitext(place)
    assert without.verdict == "scale too small to tell"
    assert "wiki.valid.raw and wiki.test.raw not found" in without.notes
    assert {row["text"] for row in without.rows} == {"own test"}
    texts = tmp_path / "texts/wikitext"
    texts.mkdir(parents=True)
    for name in ("wiki.valid.raw", "wiki.test.raw"):
        (texts / name).write_text(" = Title = \n" + "words of an article " * 40 + "\n = Next = \n" + "more " * 90)
    found = soma_wikitext.find_wikitext(replace(place, texts=tmp_path / "texts"))
    assert "not found" not in found.notes
    scored = {(row["text"], row["model"]): row["scored_targets"] for row in found.rows}
    assert scored["wikitext test", "monolith"] == scored["wikitext valid", "EGGROLL"] > 0
    assert [panel.title for panel in found.panels] == ["own test", "wikitext valid", "wikitext test"]
    again = soma_wikitext.find_wikitext(replace(place, texts=tmp_path / "texts"))
    assert again == found


def test_figure_6_times_every_case(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    from thinwire.kernels import peak

    monkeypatch.setattr(peak, "PEAK_ROUNDS", 1000)
    monkeypatch.setattr(peak, "MATRIX_SIZE", 64)
    monkeypatch.setattr(soma_inference, "CASES", {"smoke": (Case(1, 12, 4), Case(2, 8, 4))})
    monkeypatch.setattr(soma_inference, "TRAINED", (2,))
    small = replace(CONFIG, clusters=replace(CONFIG.clusters, num_clusters=2))
    monkeypatch.setattr(soma_inference, "size_run", lambda *_, **__: small)
    found = soma_inference.find_inference(place)
    assert [row["num_experts"] for row in found.rows] == [1, 2, 2]
    assert all(row["tokens_per_s"] > 0 for row in found.rows[:2])
    assert found.verdict == "scale too small to tell"
    curve = ensemble_curve(place.out / "runs/size-n2-s1")
    assert curve
    assert all(wall <= aggregate for wall, aggregate, _ in curve)
