"""Do jobs run some at once, does every outcome come back as what it was, and does nothing outlive its parent?"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from thinwire.base.errors import InterruptedRunError, RunFailedError, UserError
from thinwire.launch.local import Command, available_cores, run_commands

WORKER = """
import os, signal, sys, time
from thinwire.base.errors import InterruptedRunError, RunFailedError, UserError
from thinwire.launch.messages import PipeTask, exit_with, say, stop_requested
what, name = sys.argv[1], sys.argv[2]
should_stop = stop_requested()
task = PipeTask()
open(name + ".pid", "w").write(str(os.getpid()))
try:
    if what == "work":
        for _ in range(3):
            task.advance(2)
        task.note("done")
    elif what == "noise":
        print("a library prints", flush=True)
        say("hello")
    elif what == "user-error":
        raise UserError("it is wrong", where="there", fix="do this")
    elif what == "disk-full":
        raise OSError(28, "No space left on device", "/some/file")
    elif what == "bug":
        raise KeyError("a key of ours")
    elif what == "dies":
        sys.stderr.write("last words\\n")
        os._exit(7)
    elif what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "endless":
        say("ready")
        while not should_stop():
            time.sleep(0.01)
        open(name + ".stopped", "w").write("after the update in flight")
        raise InterruptedRunError("stopped")
except Exception as error:
    sys.exit(exit_with(error))
"""


@pytest.fixture(autouse=True)
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module ``worker``, where the processes leave their traces."""
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*whats: str, at_once: int = 2) -> list[tuple[str, dict[str, Any]]]:
    """Run one job for each; what they said."""
    said: list[tuple[str, dict[str, Any]]] = []
    commands = [Command(f"{i}-{what}", "worker", (what, f"{i}-{what}")) for i, what in enumerate(whats)]
    run_commands(commands, at_once=at_once, on_message=lambda name, message: said.append((name, message)))
    return said


def test_messages_come_back_with_their_names_in_order() -> None:
    said = run("work", "work", "work")
    for name in ("0-work", "1-work", "2-work"):
        own = [message for speaker, message in said if speaker == name]
        assert [message.get("count") for message in own] == [2, 2, 2, None]
        assert own[-1] == {"type": "note", "text": "done"}


def test_no_more_run_at_once_than_allowed() -> None:
    said = run("work", "work", "work", at_once=1)
    speakers = [name for name, _ in said]
    assert speakers == sorted(speakers)


def test_what_is_no_message_is_passed_over() -> None:
    assert run("noise") == [("0-noise", {"type": "say", "text": "hello"})]


def test_nothing_to_run_is_done() -> None:
    assert run() == []


def test_a_persons_mistake_comes_back_as_such() -> None:
    with pytest.raises(UserError) as caught:
        run("user-error")
    assert (caught.value.what, caught.value.where, caught.value.fix) == ("it is wrong", "there", "do this")


def test_an_error_of_the_disk_comes_back_as_such() -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        run("disk-full")
    assert (caught.value.errno, caught.value.filename) == (28, "/some/file")


def test_a_bug_says_where_it_happened() -> None:
    with pytest.raises(RunFailedError, match=r"(?s)0-bug ended with status 1.*worker\.py.*a key of ours"):
        run("bug")


def test_a_worker_that_dies_leaves_its_last_words() -> None:
    with pytest.raises(RunFailedError, match=r"(?s)0-dies ended with status 7.*last words"):
        run("dies")


def test_a_killed_worker_is_said_to_be_killed() -> None:
    with pytest.raises(
        RunFailedError, match=r"(?s)process of 0-killed was killed by signal 9, perhaps.*same command again"
    ):
        run("killed")


def test_one_failure_stops_the_others_after_their_update(workers: Path) -> None:
    with pytest.raises(UserError):
        run("endless", "user-error")
    trace = workers / "0-endless.stopped"
    pid = workers / "0-endless.pid"
    assert trace.exists() or not pid.exists(), "it was stopped before it began, or after its update"
    if pid.exists():
        assert not is_alive(int(pid.read_text()))


def test_a_worker_asked_to_stop_from_outside_interrupts_the_run(workers: Path) -> None:
    def on_message(_: str, message: dict[str, Any]) -> None:
        assert message == {"type": "say", "text": "ready"}
        os.kill(int((workers / "lone.pid").read_text()), signal.SIGTERM)

    with pytest.raises(InterruptedRunError, match="lone was asked to stop"):
        run_commands([Command("lone", "worker", ("endless", "lone"))], at_once=1, on_message=on_message)
    assert (workers / "lone.stopped").exists()


def test_an_interrupt_stops_every_worker_after_its_update(workers: Path) -> None:
    ready: list[str] = []

    def on_message(name: str, _: dict[str, Any]) -> None:
        ready.append(name)
        if len(ready) == 2:
            raise KeyboardInterrupt

    commands = [Command(name, "worker", ("endless", name)) for name in ("one", "two")]
    with pytest.raises(InterruptedRunError):
        run_commands(commands, at_once=2, on_message=on_message)
    assert (workers / "one.stopped").exists()
    assert (workers / "two.stopped").exists()


PARENT = """
from thinwire.launch.local import Command, run_commands
def up(*_):
    print("up", flush=True)
run_commands([Command("orphan", "worker", ("endless", "orphan"))], at_once=1, on_message=up)
"""


def test_an_orphan_stops_by_itself(workers: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        parent.kill()
    pid = int((workers / "orphan.pid").read_text())
    deadline = time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(pid)
    assert (workers / "orphan.stopped").exists(), "it finished what it was at"


def is_alive(pid: int) -> bool:
    """Running, not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_cores_are_at_least_one() -> None:
    assert available_cores() >= 1
