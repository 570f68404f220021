"""A data folder is made by one process at a time, and what a killed one left is in nobody's way."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import thinwire.data.prepare as prepare_module
from thinwire.base.errors import UserError
from thinwire.data.corpus import Corpus
from thinwire.data.prepare import prepare

PREPARE_AND_STOP = """
import sys
from pathlib import Path
import thinwire.data.prepare as module
def stop(*_, **__):
    print("filled", flush=True)
    sys.stdin.read()
module.build_manifest = stop
module.prepare([sys.argv[1]], out=Path(sys.argv[2]))
"""


def write_text(path: Path) -> Path:
    path.write_text("".join(json.dumps({"text": f"document {n} of forty"}) + "\n" for n in range(40)))
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_second_prepare_is_refused_and_the_first_is_not_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = write_text(tmp_path / "a.jsonl"), tmp_path / "new" / "data"
    build_manifest = prepare_module.build_manifest
    refused = []

    def build_while_another_starts(**given: Any) -> dict[str, Any]:
        with pytest.raises(UserError, match=rf"another process \(pid {os.getpid()}\) is working") as caught:
            prepare([str(source)], out=out)
        refused.append(caught.value)
        return build_manifest(**given)

    monkeypatch.setattr(prepare_module, "build_manifest", build_while_another_starts)
    assert prepare([str(source)], out=out).state == "prepared"
    assert [error.where for error in refused] == [str(out)]
    assert "wait until it ends" in refused[0].fix
    assert Corpus.open(out).train.num_documents > 0
    assert names(tmp_path / "new") == {"data"}
    assert prepare([str(source)], out=out).state == "reused"


def test_after_a_kill_the_next_prepare_takes_over(tmp_path: Path) -> None:
    source, out = write_text(tmp_path / "a.jsonl"), tmp_path / "data"
    argv = [sys.executable, "-c", PREPARE_AND_STOP, str(source), str(out)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "filled\n"
        with pytest.raises(UserError, match=rf"pid {holder.pid}\)"):
            prepare([str(source)], out=out)
        os.kill(holder.pid, signal.SIGKILL)
    assert names(tmp_path) == {"a.jsonl", "data.partial", "data.lock"}
    assert prepare([str(source)], out=out).state == "prepared"
    assert names(tmp_path) == {"a.jsonl", "data"}


def test_a_finished_folder_is_reused_without_a_lock(tmp_path: Path) -> None:
    source, out = write_text(tmp_path / "a.jsonl"), tmp_path / "data"
    prepare([str(source)], out=out)
    with (tmp_path / "data.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert prepare([str(source)], out=out).state == "reused"
