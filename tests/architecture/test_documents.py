"""Do the documents speak of what is there?  Paths, functions, tests and choices that they name must exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CODE_PATH = re.compile(r"`((?:src|tests|bench|docs|examples)/[\w./-]+)`")
FILE_FUNCTION = re.compile(r"`([\w/]+\.py):(\w+(?:\.\w+)?)`")
TEST_FILE = re.compile(r"`((?:unit|properties|numerics|e2e|distributed|architecture)/[\w/]*test_\w+\.py)`")
LOCAL_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
PAPERS = ("soma", "subspaces")
every_paper = pytest.mark.parametrize("paper", PAPERS)


def _documents(repository: Path) -> list[Path]:
    return [*repository.glob("*.md"), *sorted((repository / "docs").rglob("*.md"))]


def _map(repository: Path, paper: str) -> str:
    return (repository / "docs" / "papers" / f"{paper}.md").read_text(encoding="utf-8")


def _find(repository: Path, name: str) -> Path | None:
    for root in (repository, repository / "src" / "thinwire", repository / "tests"):
        if (root / name).exists():
            return root / name
    return None


def test_every_path_that_a_document_names_exists(repository: Path) -> None:
    missing = []
    for document in _documents(repository):
        text = document.read_text(encoding="utf-8")
        missing += [f"{document.name}: {path}" for path in CODE_PATH.findall(text) if not (repository / path).exists()]
        missing += [
            f"{document.name}: {link}" for link in LOCAL_LINK.findall(text) if not (document.parent / link).exists()
        ]
    assert not missing


@every_paper
def test_every_function_that_the_paper_map_names_exists(repository: Path, paper: str) -> None:
    named = FILE_FUNCTION.findall(_map(repository, paper))
    assert len(named) > 30
    missing = []
    for file, function in named:
        path = _find(repository, file)
        name = function.split(".")[-1]
        if path is None or not re.search(rf"^\s*(?:def|class) {name}\b|^{name}\b.*=", path.read_text(), re.MULTILINE):
            missing.append(f"{file}:{function}")
    assert not missing


@every_paper
def test_every_test_that_the_paper_map_names_exists(repository: Path, paper: str) -> None:
    named = TEST_FILE.findall(_map(repository, paper))
    assert len(named) > 20
    assert not [name for name in named if not (repository / "tests" / name).is_file()]


def test_every_file_with_a_choice_is_listed(repository: Path) -> None:
    text = "".join(_map(repository, paper) for paper in PAPERS)
    package = repository / "src" / "thinwire"
    with_choice = [path for path in package.rglob("*.py") if "choice:" in path.read_text(encoding="utf-8")]
    assert with_choice
    assert not [name for path in with_choice if f"`{(name := str(path.relative_to(package)))}`" not in text]


def test_the_page_of_rooms_is_up_to_date(repository: Path) -> None:
    done = subprocess.run([sys.executable, repository / "docs" / "build.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("word", ["utils", "helpers", "common", "misc"])
def test_no_drawer_modules(repository: Path, word: str) -> None:
    assert not list((repository / "src").rglob(f"*{word}*"))


def test_files_stay_short_and_say_what_they_are(repository: Path) -> None:
    for path in (repository / "src").rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 400, path
        assert lines[0].startswith('"""'), path


def test_nothing_is_pickled(repository: Path) -> None:
    forbidden = re.compile(r"import pickle|torch\.load\(|torch\.save\(|allow_pickle=True|joblib")
    assert not [p for p in (repository / "src").rglob("*.py") if forbidden.search(p.read_text(encoding="utf-8"))]
