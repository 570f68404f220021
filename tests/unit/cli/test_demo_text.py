"""Does a second demo keep the text it began with, whatever was installed since?"""

from pathlib import Path

from thinwire.base.files import read_json, write_json
from thinwire.cli.demo import _is_prepared
from tiny_runs import copy_of


def test_only_the_installations_own_text_is_kept_unseen(tiny_data: Path, tmp_path: Path) -> None:
    data = copy_of(tiny_data, tmp_path / "data")
    assert not _is_prepared(tmp_path / "nothing", text="python")
    assert not _is_prepared(data, text="python")
    manifest = read_json(data / "manifest.json")
    write_json(data / "manifest.json", manifest | {"arguments": ["python"]})
    assert _is_prepared(data, text="python")
    assert not _is_prepared(data, text=str(tmp_path))
