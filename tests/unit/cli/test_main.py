"""Does every outcome become its exit status and one message, and does standard output carry results alone?"""

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from command_lines import Here
from thinwire.base.errors import InterruptedRunError, RunFailedError, UserError
from thinwire.cli import main as cli_main
from thinwire.cli.program import program
from thinwire.cli.terminal import print_json, print_table

VERBS = (
    "demo",
    "prepare",
    "train",
    "evaluate",
    "generate",
    "measure",
    "plan",
    "export",
    "replay",
    "audit",
    "reproduce",
    "report",
    "doctor",
)


def test_help_lists_the_verbs(here: Here) -> None:
    for argv in ([], ["--help"], ["-h"], ["help"]):
        outcome = here(*argv)
        assert outcome.status == 0
        assert all(f"  {verb} ".encode() in outcome.out for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(here: Here, verb: str) -> None:
    outcome = here(verb, "--help")
    assert outcome.status == 0
    assert b"usage: thinwire" in outcome.out
    assert outcome.err == ""


def test_train_lists_the_presets_and_a_preset_its_settings(here: Here) -> None:
    assert b"soma-small" in here("train", "--help").out
    assert b"--experts.learning-rate" in here("train", "soma-small", "--help").out.replace(b"_", b"-")


def test_python_runs_the_package_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "thinwire", "--help"], capture_output=True, check=True)
    assert b"usage: thinwire VERB" in done.stdout
    wrong = subprocess.run([sys.executable, "-m", "thinwire", "nonsense"], capture_output=True, check=False)
    assert wrong.returncode == 2


def test_the_version_is_the_packages(here: Here) -> None:
    import thinwire

    assert here("--version").out.decode() == f"thinwire {thinwire.__version__}\n"


def fail_with(error: BaseException) -> Callable[[list[str]], None]:
    def verb(_: list[str]) -> None:
        raise error

    return verb


def outcome_of(error: BaseException, here: Here, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    import thinwire.cli.doctor

    monkeypatch.setattr(thinwire.cli.doctor, "main", fail_with(error))
    outcome = here("doctor", "--json")
    assert outcome.out == b""
    return outcome.status, outcome.err


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UserError("wrong", where="there", fix="do this"), 2, "error: wrong\n  where: there\n  fix:   do this\n"),
        (RunFailedError("a worker died"), 1, "error: a worker died\n"),
        (InterruptedRunError("stopped"), 130, "to go on: thinwire doctor --json\n"),
        (KeyboardInterrupt(), 130, "to go on: thinwire doctor --json\n"),
        (MemoryError(), 1, "out of memory"),
        (OSError(errno.ENOSPC, "No space left on device", "/a/b"), 2, "error: the disk is full\n  where: /a/b\n"),
        (OSError(errno.EROFS, "Read-only", "/a/b"), 2, "read-only"),
        (OSError(errno.EACCES, "Permission denied", "/a/b"), 2, "permission denied"),
        (OSError(errno.EFBIG, "File too large", "/a/b"), 2, "size limit"),
        (OSError(errno.ENOTDIR, "Not a directory", "/a/b"), 2, "a file, not a folder"),
        (FileExistsError(errno.EEXIST, "File exists", "/a/b"), 2, "a file stands where a folder is wanted"),
    ],
)  # fmt: skip
def test_an_error_becomes_a_status_and_one_message(
    here: Here, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, message: str
) -> None:
    found, text = outcome_of(error, here, monkeypatch)
    assert found == status
    assert message in text
    assert "Traceback" not in text


def test_a_bug_is_not_disguised(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        outcome_of(ZeroDivisionError(), here, monkeypatch)


def test_an_interrupt_while_a_verb_is_loaded_is_an_interrupt(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading takes seconds, and Ctrl-C comes soon where a flag was forgotten."""

    def load(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_main.importlib, "import_module", load)
    outcome = here("doctor")
    assert outcome.status == 130
    assert "to go on: thinwire doctor" in outcome.err


def test_sigterm_interrupts(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    import thinwire.cli.doctor

    def verb(_: list[str]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    monkeypatch.setattr(thinwire.cli.doctor, "main", verb)
    assert here("doctor").status == 130


def test_the_command_to_go_on_can_be_pasted(here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import thinwire.cli.generate

    monkeypatch.setattr(thinwire.cli.generate, "main", fail_with(KeyboardInterrupt()))
    outcome = here("generate", tmp_path / "my run", "--prompt", "it's")
    assert f"thinwire generate '{tmp_path}/my run' --prompt 'it'\"'\"'s'" in outcome.err


def test_json_is_ascii_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a text or the name of a file holds: also bytes that are not UTF-8."""
    record = {"text": "é\udce9\n", "number": 0.1}
    print_json(record)
    written = capsys.readouterr().out
    assert written.isascii()
    assert written.count("\n") == 1
    assert json.loads(written) == record


def test_tables_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([("a", "1"), ("longer", "2")])
    assert capsys.readouterr().out == "  a       1\n  longer  2\n"


def test_every_verb_of_the_usage_exists() -> None:
    assert tuple(cli_main.VERBS) == VERBS


@pytest.mark.parametrize(
    ("script", "found", "printed"),
    [
        (".venv/bin/thinwire", None, ".venv/bin/thinwire"),
        (".venv/bin/thinwire", "/usr/bin/thinwire", "thinwire"),
        ("/somewhere/thinwire/__main__.py", None, "python -m thinwire"),
        ("/somewhere/pytest", None, "thinwire"),
    ],
)
def test_the_program_is_named_as_the_shell_finds_it(
    script: str, found: str | None, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [script])
    monkeypatch.setattr("shutil.which", lambda _: found)
    assert shlex.join(program()) == printed
