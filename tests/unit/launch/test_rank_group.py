"""Does a lost rank leave the others at work, is it replaced where asked, and does a rank's word stop all?"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thinwire.base.errors import InterruptedRunError, RunFailedError, UserError
from thinwire.launch.group import run_ranks
from thinwire.launch.local import Command

RANK = """
import os, signal, sys, time
from pathlib import Path
from thinwire.base.errors import InterruptedRunError, RunFailedError, UserError
from thinwire.launch.messages import exit_with, give_up, say, stop_requested
what, name = sys.argv[1], sys.argv[2]
should_stop = stop_requested()
Path(name + ".pid").write_text(str(os.getpid()))
try:
    if what == "work":
        say("worked " + os.environ.get("WHERE", ""))
    elif what == "user-error":
        raise UserError("it is wrong", where="there", fix="do this")
    elif what == "bug":
        raise KeyError("a key of ours")
    elif what == "dies":
        sys.stderr.write("last words\\n")
        os._exit(7)
    elif what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "hangs":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "gives-up":
        while not Path("hung.pid").exists() or not Path("hung.pid").read_text():
            time.sleep(0.01)
        give_up(int(Path("hung.pid").read_text()))
    elif what.startswith("until-"):
        say("ready")
        while not Path(what[6:]).exists() and not should_stop():
            time.sleep(0.01)
        Path(name + ".ended").write_text("after the update in flight")
        if should_stop():
            raise InterruptedRunError("stopped")
except Exception as error:
    sys.exit(exit_with(error))
"""
Said = list[tuple[str, dict[str, Any]]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module ``rank``, where the processes leave their traces."""
    (tmp_path / "rank.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(what: str, name: str) -> Command:
    return Command(name, "rank", (what, name))


def nobody(_: str) -> Command | None:
    return None


def run(*commands: Command, on_lost: Callable[[str], Command | None] = nobody) -> Said:
    """What the ranks said."""
    said: Said = []
    run_ranks(commands, on_message=lambda name, message: said.append((name, message)), on_lost=on_lost)
    return said


def test_all_run_at_once_and_are_heard(folder: Path) -> None:
    said: Said = []

    def on_message(name: str, message: dict[str, Any]) -> None:
        said.append((name, message))
        if len(said) == 3:  # nobody ends before all have begun
            (folder / "go").touch()

    run_ranks([command("until-go", name) for name in "abc"], on_message=on_message, on_lost=nobody)
    assert sorted(said) == [(name, {"type": "say", "text": "ready"}) for name in "abc"]


def test_nothing_to_run_is_done() -> None:
    assert run() == []


@pytest.mark.parametrize(("what", "reason"), [("killed", "killed by signal 9"), ("dies", "status 7: last words")])
def test_a_lost_rank_does_not_stop_the_others(folder: Path, what: str, reason: str) -> None:
    lost: list[str] = []

    def on_lost(name: str) -> Command | None:
        lost.append(name)
        (folder / "go").touch()

    said = run(command("until-go", "a"), command(what, "b"), on_lost=on_lost)
    assert lost == ["b"]
    assert (folder / "a.ended").exists()
    told = [message for name, message in said if name == "b"]
    assert [message["type"] for message in told] == ["lost"]
    assert reason in told[0]["text"]


def test_a_lost_rank_is_replaced(folder: Path) -> None:
    def on_lost(name: str) -> Command | None:
        (folder / "go").touch()
        return command("work", name)

    said = run(command("until-go", "a"), command("killed", "b"), on_lost=on_lost)
    assert [message["type"] for name, message in said if name == "b"] == ["lost", "say"]


def test_a_rank_that_dies_at_each_start_is_not_started_for_ever() -> None:
    starts = []

    def on_lost(name: str) -> Command | None:
        starts.append(name)
        return command("dies", name)

    with pytest.raises(RunFailedError, match=r"lost 3 times; the last one, b ended with status 7: last words"):
        run_ranks([command("dies", "b")], on_message=lambda *_: None, on_lost=on_lost, max_replacements=2)
    assert len(starts) == 3


def test_all_ranks_dead_is_a_failure() -> None:
    with pytest.raises(RunFailedError, match=r"all ranks are lost; the last one, [ab] was killed by signal 9"):
        run(command("killed", "a"), command("killed", "b"))


def test_a_persons_mistake_stops_all_and_comes_back_as_such(folder: Path) -> None:
    with pytest.raises(UserError, match="it is wrong"):
        run(command("until-never", "a"), command("user-error", "b"))
    assert_ended(folder / "a.pid")


def test_a_bug_stops_all_and_says_where(folder: Path) -> None:
    with pytest.raises(RunFailedError, match=r"(?s)b ended with status 1.*rank\.py.*a key of ours"):
        run(command("until-never", "a"), command("bug", "b"))
    assert_ended(folder / "a.pid")


def test_a_rank_that_hangs_is_given_up_and_replaced() -> None:
    def on_lost(name: str) -> Command | None:
        return command("work", name)

    said = run(command("gives-up", "a"), command("hangs", "hung"), on_lost=on_lost)
    assert [message["type"] for _, message in said] == ["lost", "say"]


def test_an_interrupt_lets_every_rank_finish_its_update(folder: Path) -> None:
    ready: list[str] = []

    def on_message(name: str, _: dict[str, Any]) -> None:
        ready.append(name)
        if len(ready) == 2:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(InterruptedRunError):
        run_ranks([command("until-never", name) for name in "ab"], on_message=on_message, on_lost=nobody)
    assert (folder / "a.ended").exists()
    assert (folder / "b.ended").exists()


def test_a_rank_asked_to_stop_from_outside_interrupts_the_run(folder: Path) -> None:
    def on_message(_: str, message: dict[str, Any]) -> None:
        assert message == {"type": "say", "text": "ready"}
        os.kill(int((folder / "lone.pid").read_text()), signal.SIGTERM)

    with pytest.raises(InterruptedRunError, match="lone was asked to stop"):
        run_ranks([command("until-never", "lone")], on_message=on_message, on_lost=nobody)


def test_a_command_has_a_prefix_and_variables_of_its_own() -> None:
    where = Command("a", "rank", ("work", "a"), prefix=("env", "WHERE=prefix"))
    assert run(where) == [("a", {"type": "say", "text": "worked prefix"})]
    where = Command("a", "rank", ("work", "a"), environment={"WHERE": "here"})
    assert run(where) == [("a", {"type": "say", "text": "worked here"})]


def assert_ended(pid_file: Path) -> None:
    """The process that wrote the file, if it came so far, is gone."""
    if pid_file.exists() and (pid := pid_file.read_text()):
        assert not Path(f"/proc/{pid}").exists()
