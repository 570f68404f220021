"""Is the page whole, harmless and honest, whatever the run folder holds?"""

import csv
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from thinwire.base.errors import UserError
from thinwire.report.collect import collect_runs
from thinwire.report.markup import attribute, bytes_text, text
from thinwire.report.page import file_name, render_page, write_report

MakeRun = Callable[..., Path]
HOSTILE = b'</script><img src=x onerror=alert(1)> "quoted" & \xff\xfe\x00 \xe2\x80\xae\n\nend'
VOID = {"meta", "img", "br", "link", "input", "hr"}
ALLOWED_TAG = re.compile(
    "html|head|meta|title|style|body|header|main|section|article|h1|h2|h3|h4|p|div|span|strong|small|ul|li|dl|dt|dd|table|caption|"
    "thead|tbody|tr|th|td|figure|figcaption|details|summary|svg|g|path|defs|use|clippath|rect|image"
)


class Outline(HTMLParser):
    """Tags, attributes, headings and whether every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.headings: list[int] = []
        self.ids: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def check_harmless(page: str) -> Outline:
    """Only the tags this page is made of, no handler, no address, unique ids, headings in order."""
    found = outline(page)
    assert [tag for tag in found.tags if not ALLOWED_TAG.fullmatch(tag)] == []
    assert not [entry for entry in found.attributes if entry[1].startswith("on")]
    for tag, name, value in found.attributes:
        if name in ("href", "src", "xlink:href", "action"):
            assert value.startswith("#") or (tag == "image" and value.startswith("data:image/png;base64,"))
    assert not re.search(r"https?:|@import|url\((?!#)", page)
    assert len(found.ids) == len(set(found.ids))
    assert found.headings[0] == 1
    assert all(after - before <= 1 for before, after in zip(found.headings, found.headings[1:], strict=False))
    assert "default-src 'none'" in page
    return found


def test_finished_run(make_run: MakeRun, tmp_path: Path) -> None:
    files = write_report([make_run()], out=tmp_path / "out")
    page = files.html.read_text(encoding="utf-8")
    found = check_harmless(page)
    for words in ("2.204", "2.193 to 2.216", "2.262", "3.127", "2.447", "3.180 bits/byte", "soma-small", "plaintiff"):
        assert words in page
    assert "experts are best on their own cluster" in found.text
    assert "What is not here" not in found.text
    assert "scored at update" not in found.text
    assert "2,000 updates, 64 directions" in found.text
    assert [path.name for path in files.csvs] == ["curves.csv", "results.csv", "clusters.csv", "matrix.csv"]
    assert {path.name for path in files.pngs} == {
        "curves.png",
        "curves-log.png",
        "clusters.png",
        "matrix.png",
        "scores.png",
        "scores-1.png",
    }
    for path in files.pngs:
        assert path.read_bytes().startswith(b"\x89PNG")
    svg_labels = [value for tag, name, value in found.attributes if tag == "svg" and name == "aria-label"]
    assert len(svg_labels) == 10
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_run_scored_before_its_end_is_not_shown_as_finished(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(expert_progress=0.3, num_experts=2, scored_updates=(500, 600))
    page = write_report([folder], out=tmp_path / "out").html.read_text(encoding="utf-8")
    found = check_harmless(page)
    assert "2 of 2 experts have not finished, at update 600 of 2,000: experts 0 and 1." in found.text
    assert "600 of 2,000 updates, 64 directions" in found.text
    tiles, _, rest = page.partition("What is not here")
    assert "scored at updates 500 to 600 of 2,000" in tiles
    assert rest.count("The ensemble was scored at updates 500 to 600 of 2,000.") == 2
    together = render_page(collect_runs([folder, make_run("whole", num_experts=2)]))
    comparison, _, _ = together.partition("</section>")
    assert "soma was scored at updates 500 to 600 of 2,000." in comparison
    assert "whole was scored" not in comparison


@pytest.mark.parametrize(("place", "shown"), [("/home/a b/<x>", True), ("", False), (7, False), (None, False)])
def test_command_is_shown_with_the_folder_it_was_given_in(make_run: MakeRun, place: object, shown: bool) -> None:
    folder = make_run(parts=("seed",))
    manifest = {"command": "thinwire train soma-small --data ../mix --out soma", "working_folder": place}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    found = check_harmless(render_page(collect_runs([folder])))
    _, _, commands = found.text.partition("How to continue")
    assert ("in the folder /home/a b/<x>, where it was given first" in commands) == shown
    assert ("where it was given first" in commands) == shown
    (folder / "manifest.json").unlink()
    assert "where it was given first" not in render_page(collect_runs([folder]))


def test_title_names_the_folder_and_the_preset(make_run: MakeRun) -> None:
    titles = {}
    for name, preset in (("soma", "demo"), ("demo", "demo"), ("bare", None)):
        folder = make_run(name, parts=("seed",))
        record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(record | {"preset": preset}), encoding="utf-8")
        page = render_page(collect_runs([folder]))
        titles[name] = re.findall("<title>(.*)</title>", page) + re.findall("<h1>(.*)</h1>", page)
    assert titles == {
        "soma": ["Thinwire: soma (demo)"] * 2,
        "demo": ["Thinwire: demo"] * 2,
        "bare": ["Thinwire: bare"] * 2,
    }


def test_same_folder_gives_the_same_page(make_run: MakeRun) -> None:
    runs = collect_runs([make_run(num_experts=2, parts=("seed", "router", "matrix"))])
    assert render_page(runs) == render_page(runs)


def test_hostile_text_is_shown_and_does_nothing(make_run: MakeRun, tmp_path: Path) -> None:
    terms = (("<script>alert(1)</script>", "$\\frac{", "日本語", "\u202eevil"), ("=cmd()", "b"))
    name = "<b>$x^$ & 'run'"
    folder = make_run(name, num_experts=2, continuation=HOSTILE, prompt="<svg onload=alert(2)>", terms=terms)
    page = write_report([folder, make_run("other", parts=("seed",))], out=tmp_path / "out").html.read_text(
        encoding="utf-8"
    )
    found = check_harmless(page)
    assert "</script>" not in page
    assert '</script><img src=x onerror=alert(1)> "quoted" & \\xff\\xfe\\x00 \\u202e\n\nend' in found.text
    assert "<svg onload=alert(2)>" in found.text
    assert "日本語" in found.text
    assert "\u202e" not in page
    assert "\x00" not in page


@pytest.mark.parametrize(
    "parts",
    [
        (),
        ("seed",),
        ("seed", "router"),
        ("experts", "sample"),
        ("test",),
        ("matrix",),
    ],
)
def test_absent_parts(make_run: MakeRun, tmp_path: Path, parts: tuple[str, ...]) -> None:
    files = write_report([make_run(parts=parts, num_experts=2)], out=tmp_path / "out")
    found = check_harmless(files.html.read_text(encoding="utf-8"))
    assert "What is not here" in found.text
    assert ("Not scored yet" in found.text) == ("test" not in parts)
    assert "thinwire train soma-small --data data/mix --out" in found.text


def test_several_runs_are_compared(make_run: MakeRun, tmp_path: Path) -> None:
    parts = ("seed", "experts", "test")
    folders = [make_run("central", num_experts=2, parts=parts), make_run("one-sided", level=-0.03, parts=("test",))]
    folders.append(make_run("going", parts=("seed",)))
    files = write_report(folders, out=tmp_path / "out")
    found = check_harmless(files.html.read_text(encoding="utf-8"))
    assert "Comparison" in found.text
    assert "Run one-sided" in found.text
    assert "not scored" in found.text
    assert "comparison.png" in {path.name for path in files.pngs}
    with files.csvs[0].open(encoding="utf-8", newline="") as handle:
        assert {row["run"] for row in csv.DictReader(handle)} == {"central", "going"}


@pytest.mark.parametrize("num_experts", [1, 64])
def test_few_and_many_experts(make_run: MakeRun, tmp_path: Path, num_experts: int) -> None:
    files = write_report(
        [make_run(num_experts=num_experts, parts=("seed", "router", "experts", "test", "matrix"))], out=tmp_path / "out"
    )
    page = files.html.read_text(encoding="utf-8")
    check_harmless(page)
    assert len(page) < 1_000_000


def test_mistake_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run folder"):
        write_report([tmp_path / "absent"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_out_that_cannot_be_written_is_the_persons_to_mend(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be written") as caught:
        write_report([make_run(parts=("seed",))], out=tmp_path / "file")
    assert caught.value.where == str(tmp_path / "file")


def test_text_is_escaped_and_codes_are_set_apart() -> None:
    assert text("a<b>&'\"") == "a&lt;b&gt;&amp;&#x27;&quot;"
    assert text("\\x00") == "\\x00"
    assert text("\x00") == '<span class="code">\\x00</span>'
    assert bytes_text(b"\xc3\xa9\xc3") == 'é<span class="code">\\xc3</span>'
    assert text("\ud800") == '<span class="code">\\ud800</span>'
    assert attribute("a\x1b\u200d") == "a\\x1b\\u200d"


def test_file_name_keeps_to_plain_characters() -> None:
    assert file_name("../a b/<c>") == "..-a-b-c-"


@pytest.mark.parametrize(
    ("partition", "start", "words"),
    [
        ("iid", "warm", ("draws from all", "the same held-out windows", "where the seed run ended", "none of them is")),
        ("random", "cold", ("Random shards instead of clusters", "own random shard", "random bodies with the seed")),
        ("semantic", "frozen_random_head", ("top terms", "held-out windows of its own cluster", "a random E")),
    ],
)
def test_controls_are_not_described_as_clusters(
    make_run: MakeRun, partition: str, start: str, words: tuple[str, ...]
) -> None:
    folder = make_run(num_experts=3)
    record = json.loads((folder / "config.json").read_text())
    record["config"]["clusters"]["partition"], record["config"]["start"] = partition, start
    (folder / "config.json").write_text(json.dumps(record))
    found = check_harmless(render_page(collect_runs([folder])))
    for expected in words:
        assert expected in found.text
    assert ("Clusters and their top terms" in found.text) == (partition == "semantic")
