"""Are several runs compared against every budget, and refused where their scored windows differ?"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thinwire.base.errors import UserError
from thinwire.report.collect import collect_runs
from thinwire.report.curves import comparison_figure, curves_figure, total_cost
from thinwire.report.page import render_page, write_report

MakeRun = Callable[..., Path]
PARTS = ("seed", "router", "experts", "test")


def change(folder: Path, *, config: dict[str, Any] | None = None, **scored: Any) -> Path:
    """Settings by dotted name, ``data`` in the manifest, and entries of the test score."""
    path = folder / "config.json"
    record = json.loads(path.read_text())
    for key, value in (config or {}).items():
        section, _, name = key.rpartition(".")
        (record["config"].setdefault(section, {}) if section else record["config"])[name] = value
    path.write_text(json.dumps(record))
    if "data" in scored:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["data"] = {"folder": "data", "fingerprint": scored.pop("data")}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    path = folder / "results/test.json"
    if path.is_file():
        path.write_text(json.dumps(json.loads(path.read_text()) | scored))
    return folder


def test_table_has_interval_and_cost_best_first(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [make_run("worse", num_experts=2, parts=PARTS), make_run("better", level=-0.1, parts=PARTS)]
    folders.append(make_run("going", parts=("seed",)))
    runs = collect_runs(folders)
    table = render_page(runs).partition("The runs side by side")[2].partition("</table>")[0]
    assert table.index("better") < table.index("worse") < table.index("going")
    assert "2.093 to 2.116" in table
    assert f"{total_cost(runs[1], 'updates'):,.0f}" in table
    assert total_cost(runs[1], "updates") == 3000
    assert total_cost(runs[1], "byte_forwards") == runs[1].byte_forwards
    files = write_report(folders, out=tmp_path / "out")
    assert {path.stem for path in files.pngs} >= {"comparison", "comparison-log", "0-worse-curves-log"}


def test_every_budget_on_both_axes(make_run: MakeRun) -> None:
    runs = collect_runs([make_run("a", num_experts=2, parts=PARTS), make_run("b", num_experts=3, parts=PARTS)])
    for axis in ("linear", "log"):
        for figure in (comparison_figure(runs, axis=axis), curves_figure(runs[0], axis=axis)):
            assert [panel.get_xscale() for panel in figure.axes] == [axis] * 3
            labels = [panel.get_xlabel() for panel in figure.axes]
            assert [label.split(" (")[0] for label in labels] == ["updates", "byte-forwards", "device time"]
    drawn = comparison_figure(runs, axis="log").axes[1]
    assert min(min(line.get_xdata()) for line in drawn.lines if len(line.get_xdata())) > 0
    page = render_page(runs)
    for cost in ("updates", "byte-forwards", "device-seconds"):
        assert f'id="comparison-{cost}-0"' in page
        assert f'id="comparison-{cost}-log-0"' in page


@pytest.mark.parametrize(
    ("config", "scored", "words"),
    [
        ({"scoring.window_bytes": 512}, {}, "scoring.window_bytes 1,024 and 512"),
        ({"routing.prefix_bytes": 64}, {}, "routing.prefix_bytes 256 and 64"),
        ({"scoring.max_windows": 7}, {}, "scoring.max_windows 4,096 and 7"),
        ({}, {"data": "b" * 64}, "the text (data aaaaaaaaaaaa and bbbbbbbbbbbb)"),
        ({}, {"windows_digest": "2222"}, "the scored windows themselves (digests 1111 and 2222)"),
    ],
)
def test_other_windows_or_texts_are_refused(
    make_run: MakeRun, tmp_path: Path, here, config: dict[str, Any], scored: dict[str, Any], words: str
) -> None:
    scoring = {"scoring.window_bytes": 1024, "scoring.max_windows": 4096}
    one = change(make_run("one", parts=PARTS), config=scoring, data="a" * 64, windows_digest="1111")
    same = change(make_run("same", parts=PARTS), config=scoring, data="a" * 64, windows_digest="1111")
    changed = {"data": "a" * 64, "windows_digest": None if config else "1111"} | scored
    if scored.get("data"):
        changed["windows_digest"] = "3333"
    other = change(make_run("other", parts=PARTS), config=scoring | config, **changed)
    write_report([one, same], out=tmp_path / "both")
    outcome = here("report", one, same, other, "--out", tmp_path / "out")
    assert outcome.status == 2
    assert words in outcome.err
    assert "'one' and 'other'" in outcome.err
    assert not (tmp_path / "out").exists()


def test_same_windows_of_another_corpus_compare(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [
        change(make_run(name, parts=PARTS), data=name[0] * 64, windows_digest="1111") for name in ("apple", "berry")
    ]
    write_report(folders, out=tmp_path / "out")
    change(folders[1], config={"routing.prefix_bytes": 64})
    with pytest.raises(UserError, match="not scored"):
        write_report(folders, out=tmp_path / "out")


def test_other_seeds_compare_with_a_note(make_run: MakeRun, tmp_path: Path) -> None:
    one = change(make_run("one", parts=PARTS), data="a" * 64, windows_digest="1111")
    other = change(make_run("two", parts=PARTS), config={"seed": 2}, data="a" * 64, windows_digest="2222")
    page = write_report([one, other], out=tmp_path / "out").html.read_text(encoding="utf-8")
    assert "sampling error" in page
    change(other, windows_digest="1111")
    page = write_report([one, other], out=tmp_path / "out").html.read_text(encoding="utf-8")
    assert "sampling error" not in page


def test_a_model_without_a_router_compares_by_its_own_setting(make_run: MakeRun, tmp_path: Path) -> None:
    soma = make_run("soma", parts=PARTS)
    eggroll = make_run("eggroll", parts=("test",))
    record = json.loads((eggroll / "config.json").read_text())
    del record["config"]["routing"]
    record["config"]["prefix_bytes"] = 64
    (eggroll / "config.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="not scored"):
        write_report([soma, eggroll], out=tmp_path / "out")
