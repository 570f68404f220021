"""Is a job's folder held by one process, and is a folder that is no run said to be none?"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from thinwire.base.errors import UserError
from thinwire.runs.layout import RunFolder, exclusive

HOLD = """
import sys
from pathlib import Path
from thinwire.runs.layout import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_told_who_holds_the_folder_until_it_is_killed(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=rf"another process \(pid {holder.pid}\)"), exclusive(tmp_path):
            pass
        os.kill(holder.pid, signal.SIGKILL)
    with exclusive(tmp_path):
        assert (tmp_path / "lock").read_text() == f"pid {os.getpid()}"


def test_the_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), exclusive(tmp_path):
        raise RuntimeError
    with exclusive(tmp_path):
        pass


def test_a_folder_without_config_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    for root in (tmp_path, tmp_path / "file", tmp_path / "absent"):
        with pytest.raises(UserError, match="not a run folder") as caught:
            RunFolder(root).read_config()
        assert caught.value.where == str(root)


def test_experts_lie_in_numbered_folders(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).expert(7).scalars == tmp_path / "experts" / "007" / "scalars.log"
