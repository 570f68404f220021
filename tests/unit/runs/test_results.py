"""Does every score get a file of its own, whatever its text is called?"""

from pathlib import Path

import pytest

from thinwire.base.files import read_json
from thinwire.runs.results import keep_result, text_name


@pytest.mark.parametrize(
    ("on", "name"), [(None, "test"), ("a/wiki.txt", "wiki"), ("test.txt", "text-test"), ("traffic.md", "text-traffic")]
)
def test_a_text_never_takes_the_name_of_the_runs_own_results(on: str | None, name: str) -> None:
    assert text_name(None if on is None else Path(on)) == name


def test_another_text_of_the_same_name_is_kept_beside_the_first(tmp_path: Path) -> None:
    first = {"name": "wiki", "windows_digest": "0123456789abcdef", "loss": 1.0}
    other = first | {"windows_digest": "fedcba9876543210", "loss": 2.0}
    keep_result(tmp_path, first)
    keep_result(tmp_path, other)
    keep_result(tmp_path, first | {"loss": 3.0})
    assert read_json(tmp_path / "results" / "wiki.json")["loss"] == 3.0
    assert read_json(tmp_path / "results" / "wiki-fedcba98.json") == other


def test_the_runs_own_test_is_replaced(tmp_path: Path) -> None:
    for digest in ("0123456789abcdef", "fedcba9876543210"):
        keep_result(tmp_path, {"name": "test", "windows_digest": digest})
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["test.json"]
