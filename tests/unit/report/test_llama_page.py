"""Is the page about context-parallel runs whole, harmless and honest: one run, several, and both methods together?"""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from test_page import check_harmless, outline

from thinwire.report.collect import collect_runs
from thinwire.report.page import render_page, write_report
from thinwire.report.subspaces.comparison import comparison_section
from thinwire.report.subspaces.curves import has_log_axis, loss_ceiling, run_lines, run_marks, training_lines
from thinwire.report.subspaces.figures import named_figures
from thinwire.report.subspaces.records import SubspacesRun
from thinwire.report.tables import write_tables

Make = Callable[..., Path]


def runs_of(*folders: Path) -> tuple[SubspacesRun, ...]:
    return tuple(run for run in collect_runs(list(folders)) if isinstance(run, SubspacesRun))


def test_one_run(make_llama: Make, tmp_path: Path) -> None:
    files = write_report([make_llama(parts=("test", "theta", "sample"))], out=tmp_path / "out")
    found = check_harmless(files.html.read_text(encoding="utf-8"))
    for words in (
        "folded model, test",
        "2.4500",
        "95%: 2.4300 to 2.4700",
        "11.59",
        "70.0 kB",
        "98% of K and 95% of V left out, basis of the weights, theta from the chunk before, bfloat16 on the wire",
        "512 tokens in 8 chunks over 4 ranks (zigzag)",
        "plugged in",
        "unplugged",
        "As trained, with the codec, test costs 2.4460 nats/token; the stock model on the same windows 2.4500",
        "turned by 2.50 to 15.00 degrees",
        "measure traffic",
        "<b>ab</b>",
    ):
        assert words in found.text
    assert "What is not here" not in found.text
    assert [path.name for path in files.csvs] == [
        f"subspaces-{name}.csv" for name in ("curves", "results", "bytes", "theta", "events")
    ]
    assert {path.name for path in files.pngs} == {"loss.png", "training.png", "theta.png"}
    for path in files.pngs:
        assert path.read_bytes().startswith(b"\x89PNG")
    labels = [value for tag, name, value in found.attributes if tag == "svg" and name == "aria-label"]
    assert len(labels) == 6 + 3
    assert any(value.startswith("Validation loss of llama against bytes of keys and values") for value in labels)


def figure_names(*folders: Path) -> list[str]:
    """Of the pictures beside the page."""
    runs = runs_of(*folders)
    return [name for name, _ in named_figures(runs, prefixes=[f"{run.name}-" for run in runs], comparison="comparison")]


def test_plain_beside_compressed(make_llama: Make) -> None:
    folders = [make_llama("plain", kind="plain"), make_llama("coded", level=0.01)]
    page = render_page(collect_runs(folders))
    found = check_harmless(page)
    comparison, _, _ = page.partition("</section>")
    assert "coded beside plain: its test loss lies 0.0100 above (perplexity +1.01%)" in comparison
    assert "3.50%" in comparison
    assert "logarithmic" in comparison
    assert "Not all runs are on one figure" not in found.text
    assert found.headings.count(2) == 3
    names = ["plain-loss", "plain-training", "coded-loss", "coded-training", "coded-theta"]
    assert figure_names(*folders) == ["comparison", *names]


def test_a_part_that_is_not_known_is_no_blank(make_llama: Make) -> None:
    section = comparison_section(runs_of(make_llama("a"), make_llama("b", seed=2)), level=2)
    assert section.count("not measured") == 2
    assert "thinwire measure traffic RUN" in section
    known = comparison_section(runs_of(make_llama("c"), make_llama("d", kind="plain")), level=2)
    assert "not measured" not in known
    assert "thinwire measure traffic RUN" not in known


def test_runs_that_do_not_compare_are_told_apart(make_llama: Make) -> None:
    folders = [make_llama("a"), make_llama("b", kind="plain"), make_llama("c", fingerprint="b2" * 32)]
    found = outline(comparison_section(runs_of(*folders), level=2))
    assert "losses compare only on the same text and at the same sequence length" in found.text
    assert "c was trained on text with fingerprint b2b2b2b2b2." in found.text
    labels = [value for tag, name, value in found.attributes if tag == "svg" and name == "aria-label"]
    assert len([value for value in labels if value.startswith("Validation loss of a, b against")]) == 5
    assert not [value for value in labels if "a, c" in value or "b, c" in value]
    assert figure_names(*folders).count("comparison") == 1
    assert "comparison" not in figure_names(folders[0], folders[2])


def test_both_methods_on_one_page(make_llama: Make, make_run: Make, tmp_path: Path) -> None:
    folders = [make_run(num_experts=2), make_llama("plain", kind="plain"), make_llama("coded")]
    files = write_report(folders, out=tmp_path / "out")
    found = check_harmless(files.html.read_text(encoding="utf-8"))
    assert "Experts trained with forward passes (SOMA)" in found.text
    assert "A Llama over thin wires (subspaces)" in found.text
    assert "Two methods, a part each" in found.text
    assert found.headings.count(2) == 2
    assert max(found.headings) == 4
    assert {path.name for path in files.csvs} >= {"curves.csv", "matrix.csv", "subspaces-curves.csv"}
    names = {path.name for path in files.pngs}
    assert names >= {"0-soma-curves.png", "subspaces-comparison.png", "1-plain-loss.png", "2-coded-theta.png"}
    assert "comparison.png" not in names


@pytest.mark.parametrize("made", [0, 1, 21])
def test_run_under_way(made: int, make_llama: Make) -> None:
    found = check_harmless(render_page(collect_runs([make_llama(made=made, parts=("theta",))])))
    assert "What is not here" in found.text
    assert "Nothing is scored yet" in found.text


def test_lost_and_resumed_ranks_are_told(make_llama: Make) -> None:
    found = check_harmless(render_page(collect_runs([make_llama(lost_at=44, resumed_at=30)])))
    assert "a rank was lost" in found.text
    assert "members 3; ranks 3; rank 3 closed the connection" in found.text
    assert "resumed" in found.text


def test_hostile_text_stays_text(make_llama: Make) -> None:
    evil = '</script><img src=x onerror=alert(1)> "x" \u202e'
    event = {"kind": "event", "step": 60, "what": evil, "phase": evil, evil: evil}
    folder = make_llama(parts=("test", "sample"), prompt=evil, extra=(event,), kind="subspace")
    found = check_harmless(render_page(collect_runs([folder])))
    assert "img" not in found.tags


def test_what_measure_found_is_on_the_page(make_llama: Make) -> None:
    folder = make_llama()
    link = {"bits_per_s": 3e8, "per": "node", "phase": "compressed", "exchange_seconds": 0.0118}
    record = {
        "is_equal": True,
        "step": 60,
        "updates_compared": 60,
        "phases": [
            {"phase": "compressed", "plain_exchange_bytes_per_update": 2_000_000},
            {"phase": "warm-up", "plain_exchange_bytes_per_update": 0},
        ],
        "links": [link | {"plain_exchange_seconds": 0.3355}],
    }
    import json

    (folder / "results/traffic.json").write_text(json.dumps(record))
    found = check_harmless(render_page(collect_runs([folder])))
    assert "The bytes counted in 60 updates equal the closed form exactly." in found.text
    assert "300 Mbit/s per node an update's exchange takes 11.8 ms, without a codec 335.5 ms" in found.text
    assert "3.50% of plain" in found.text
    (folder / "results/traffic.json").write_text(json.dumps(record | {"is_equal": False}))
    assert "The counted bytes differ from the closed form" in render_page(collect_runs([folder]))


def test_lines_and_marks(make_llama: Make) -> None:
    plain, coded = runs_of(make_llama("plain", kind="plain"), make_llama("coded"))
    lines = run_lines((plain, coded))
    assert [line.name for line in lines] == ["plain", "coded", "the warm-up has ended", "unplugged"]
    assert [(mark.marker, mark.point.step, mark.point.phase) for mark in run_marks((plain, coded))] == [
        ("^", 20, "plain"),
        ("^", 20, "compressed"),
        ("v", 50, "folded"),
    ]
    assert has_log_axis(lines, "exchanged_bytes")
    assert not has_log_axis(lines, "steps")
    assert not has_log_axis(run_lines((coded,)), "exchanged_bytes")
    assert [line.name for line in run_lines((coded,))][:2] == ["validation, as trained", "stock model, test"]


def test_few_points_are_not_cut(make_llama: Make) -> None:
    (short,) = runs_of(make_llama(made=25, parts=()))
    assert len(short.validation) == 3
    assert loss_ceiling(run_lines((short,))) is None
    (whole,) = runs_of(make_llama("whole"))
    assert loss_ceiling(run_lines((whole,))) is not None


def test_training_points_do_not_mix_phases(make_llama: Make) -> None:
    (run,) = runs_of(make_llama(steps=606, made=606, warmup=205))
    (line,) = training_lines((run,))
    edges = {(point.cost("steps") <= 205.5, point.cost("steps") <= 505.5) for point in line.points}
    assert len(edges) == 3
    assert 100 <= len(line.points) <= 110


def test_tables(make_llama: Make, tmp_path: Path) -> None:
    paths = write_tables(runs_of(make_llama("plain", kind="plain"), make_llama("coded")), folder=tmp_path / "tables")
    rows = {path.stem: list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) for path in paths}
    assert len(rows["subspaces-curves"]) == 2 * 60 + 7 + 8
    last = [row for row in rows["subspaces-curves"] if row["run"] == "coded" and row["split"] == "train"][-1]
    assert last["kv_backward_bytes"] == str(40 * 34_000)
    assert last["phase"] == "folded"
    assert [row["perplexity"][:6] for row in rows["subspaces-results"]] == ["11.588", "11.588"]
    sent = {(row["run"], row["phase"], row["tag"]): row for row in rows["subspaces-bytes"]}
    assert float(sent["coded", "compressed", "kv-forward"]["bytes_per_update"]) == 34_000
    assert sent["coded", "all", "theta"]["counted_bytes"] == str(40 * 2_000)
    assert len(rows["subspaces-theta"]) == 4 * 2 * 2
    assert [row["event"] for row in rows["subspaces-events"]] == ["context parallel", "plug in", "unplug"]
