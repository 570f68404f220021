"""How do tests disturb a run of several ranks at an exact moment?  Launchers and ranks are forked, and follow a plan.

A process that has torch loaded forks them, so that a run costs no imports. Everything else is as in life: a launcher
leads a process group of its own, ranks are its children, speak through pipes and meet in its store.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Literal

Moment = Literal[
    "step", "backward", "plug in", "rank part", "rank part written", "before commit", "committed", "meet again"
]
Deed = Literal["kill", "kill all", "stop", "interrupt", "slow"]
EXIT_SECONDS = 60
SLOW_SECONDS = 0.15
ORPHAN_SECONDS = 20.0


@dataclass(frozen=True)
class Plan:
    """What one rank does, once, at a moment of a step.

    Attributes:
        member: the rank; only its first process does it.
        moment: where.
        step: the update; any for ``plug in`` and ``meet again``.
        deed: SIGKILL to itself or to the whole group, SIGSTOP to itself, SIGINT to the launcher; ``slow`` makes every
            update from this step on last longer, so that others find time to come.
    """

    member: int
    moment: Moment
    step: int
    deed: Deed


@dataclass(frozen=True)
class Ended:
    """How a launcher ended: exit status (negative: a signal), what it said, what it complained about."""

    status: int
    said: str
    complaint: str


class ForkServer:
    """A context manager; see ``start`` and ``finish``."""

    def __enter__(self) -> "ForkServer":
        self._folder = tempfile.TemporaryDirectory()
        address = str(Path(self._folder.name) / "server")
        listener = Listener(address, "AF_UNIX")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen([sys.executable, __file__, address], env=environment)
        self._connection: Connection = listener.accept()
        listener.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.wait(EXIT_SECONDS)
        self._folder.cleanup()

    def start(self, config: Any, *, data: Path, out: Path, plans: tuple[Plan, ...] = ()) -> int:
        """Begin, or go on with, a run in a process group of its own; returns the launcher's number."""
        self._connection.send_bytes(pickle.dumps(("launch", config, data, out, plans)))
        return int(self._answer())

    def start_by_hand(
        self, config: Any, *, data: Path, out: Path, environment: dict[str, str], plans: tuple[Plan, ...] = ()
    ) -> int:
        """Be one rank, as the environment says; returns its number."""
        self._connection.send_bytes(pickle.dumps(("by hand", config, data, out, plans, environment)))
        return int(self._answer())

    def finish(self, launcher: int) -> Ended:
        """Wait for a launcher's end."""
        self._connection.send_bytes(pickle.dumps(("finish", launcher)))
        return self._answer()

    def train(self, config: Any, *, data: Path, out: Path, plans: tuple[Plan, ...] = ()) -> Ended:
        """From start to end."""
        return self.finish(self.start(config, data=data, out=out, plans=plans))

    def _answer(self) -> Any:
        answer = pickle.loads(self._connection.recv_bytes())
        if isinstance(answer, BaseException):
            raise answer
        return answer


def group_members(leader: int) -> list[int]:
    """Processes of a group that are still there, zombies left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == leader and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def all_ended(leader: int) -> bool:
    """Whether nothing is left of a group; a process that was just killed takes a moment."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while group_members(leader) and time.monotonic() < deadline:
        time.sleep(0.02)
    return group_members(leader) == []


def wait_for(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.05)


# --- the server's side ----------------------------------------------------------------------------------------------


class _Gate:
    """Ranks begin when all are forked: a fork beside the store's busy thread may copy a lock that nobody will open."""

    def __init__(self, ranks: int) -> None:
        self._left = ranks
        self._read, self._write = os.pipe()

    def wait(self) -> None:
        """In a rank."""
        if self._left > 0:
            os.close(self._write)
            os.read(self._read, 1)

    def forked(self) -> None:
        """In the launcher."""
        self._left -= 1
        if self._left == 0:
            os.close(self._write)


class _Forked:
    """Stands for ``subprocess.Popen`` of ``python -m thinwire.subspaces.worker ...``."""

    plans: tuple[Plan, ...] = ()
    gate: _Gate

    def __init__(self, argv: list[str], **_: Any) -> None:
        module, arguments = argv[2], argv[3:]
        assert module == "thinwire.subspaces.worker"
        (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe()
        self.returncode: int | None = None
        self.reaping = threading.Lock()
        self.pid = os.fork()
        if self.pid == 0:
            self.gate.wait()
            _be_rank(arguments, out_w, err_w, self.plans)
        self.gate.forked()
        os.close(out_w)
        os.close(err_w)
        self.stdout, self.stderr = os.fdopen(out_r), os.fdopen(err_r)

    def poll(self) -> int | None:
        with self.reaping:  # a launcher's threads may ask at the same time
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout or 1e9)
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("rank", timeout or 0)
            time.sleep(0.02)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _be_rank(arguments: list[str], out: int, err: int, plans: tuple[Plan, ...]) -> None:
    from thinwire.subspaces import worker

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _leave_digest()
    os.dup2(out, 1)
    os.dup2(err, 2)
    _let_go_of_files()
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    status = 1
    try:
        if arguments[4] != "join":
            for plan in plans:
                if plan.member == int(arguments[1]):
                    _install(plan)
        status = worker.main(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):  # the launcher is gone; this copy of it must not go on in its place
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _let_go_of_files() -> None:
    """Of the launcher's. Their numbers stay taken: an inherited object that is collected later closes its number."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:
        if number > 2 and number != nothing:
            with suppress(OSError):  # the one that listed them
                os.fstat(number)
                os.dup2(nothing, number)


def _leave_digest() -> None:
    """A rank that ends well writes down a hash of its weights."""
    from thinwire.base.files import sha256_text
    from thinwire.subspaces.rank_run import RankRun

    original = RankRun.run

    def run(self: RankRun, *, is_new: bool) -> None:
        original(self, is_new=is_new)
        weights = self.trainer.replica.weights()
        text = "".join(f"{name} {weights[name].tolist()}" for name in sorted(weights))
        (self.around.run / f"digest-{self.around.meeting.member}").write_text(sha256_text(text))

    RankRun.run = run  # type: ignore[method-assign]


def digests(out: Path) -> dict[int, str]:
    """Of the weights of each rank that ended well, by its name."""
    return {int(path.name.removeprefix("digest-")): path.read_text() for path in out.glob("digest-*")}


def _install(plan: Plan) -> None:
    from thinwire.runs import checkpoint
    from thinwire.subspaces import phases, saving, team, trainer

    def do() -> None:
        if plan.deed == "kill all":
            os.killpg(0, signal.SIGKILL)
        elif plan.deed == "interrupt":
            os.kill(os.getppid(), signal.SIGINT)
        elif plan.deed == "slow":
            time.sleep(SLOW_SECONDS)
        else:
            os.kill(os.getpid(), signal.SIGKILL if plan.deed == "kill" else signal.SIGSTOP)

    def before(owner: Any, name: str, step_of: Callable[..., int], *, after: bool = False) -> None:
        original = getattr(owner, name)

        def replaced(*arguments: Any, **keywords: Any) -> Any:
            step = step_of(*arguments, **keywords)
            is_now = step >= plan.step if plan.deed == "slow" else step == plan.step
            if is_now and not after:
                do()
            result = original(*arguments, **keywords)
            if is_now and after:
                do()
            return result

        setattr(owner, name, replaced)

    if plan.moment == "step":
        before(trainer.Trainer, "train_step", lambda self: self.step + 1)
    elif plan.moment == "backward":
        before(trainer.Trainer, "_backward", lambda _, step, __: step, after=True)
    elif plan.moment == "meet again":
        before(team.Meeting, "again", lambda *_, **__: plan.step)
    elif plan.moment == "plug in":
        before(phases, "plug_in", lambda *_, **__: plan.step)
    elif plan.moment == "before commit":
        before(checkpoint, "write_json", lambda path, _: int(path.stem) if path.parent.name == "checkpoints" else -1)
    else:
        name = "save_weights" if plan.moment == "committed" else "save_rank"
        before(saving, name, lambda *_, step, **__: step, after=plan.moment != "rank part")


def _launch(
    config: Any, data: Path, out: Path, plans: tuple[Plan, ...], environment: dict[str, str] | None, report: str
) -> None:
    """Be a launcher, as the command line is, up to the score; with an environment, be one rank."""
    os.setsid()
    from thinwire.base.errors import InterruptedRunError, ThinwireError
    from thinwire.base.progress import Voice
    from thinwire.data.corpus import Corpus
    from thinwire.launch import worker_process
    from thinwire.runs.layout import exclusive
    from thinwire.subspaces import recipe

    said: list[str] = []
    status, complaint = 0, ""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)
    _Forked.plans, _Forked.gate = plans, _Gate(config.launch.ranks)
    worker_process.subprocess = type("Forks", (), {"Popen": _Forked, **_names(subprocess)})  # type: ignore[assignment]
    try:
        if environment is None:
            with exclusive(out):
                recipe.open_or_create(config, corpus=Corpus.open(data), out=out, preset="custom")
                recipe.start_ranks(config, out=out, voice=Voice(say=said.append))
        else:
            os.environ.update(environment)
            _leave_digest()
            for plan in plans:
                _install(plan)
            recipe.train(config, data=data, out=out, voice=Voice(say=said.append))
    except KeyboardInterrupt:
        status = InterruptedRunError.exit_status
    except ThinwireError as error:
        status, complaint = error.exit_status, str(error)
    except BaseException:
        status, complaint = 99, traceback.format_exc()
    Path(report).write_text(json.dumps(["\n".join(said), complaint]))
    os._exit(status)


def _names(module: Any) -> dict[str, Any]:
    return {name: getattr(module, name) for name in ("PIPE", "DEVNULL", "TimeoutExpired")}


def _serve(connection: Connection) -> None:
    import torch

    import thinwire.subspaces.recipe
    import thinwire.subspaces.worker  # noqa: F401  all that takes long

    torch.set_num_threads(1)
    reports: dict[int, str] = {}
    while True:
        try:
            request = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            if request[0] in ("launch", "by hand"):
                handle, report = tempfile.mkstemp()
                os.close(handle)
                child = os.fork()
                if child == 0:
                    _launch(*request[1:5], request[5] if len(request) > 5 else None, report)
                reports[child] = report
                answer: Any = child
            else:
                status = os.waitstatus_to_exitcode(os.waitpid(request[1], 0)[1])
                written = Path(reports.pop(request[1])).read_text()
                answer = Ended(status, *(json.loads(written) if written else ("", "")))
        except Exception as error:
            answer = error
        connection.send_bytes(pickle.dumps(answer))


if __name__ == "__main__":
    from forked_runs import _serve as serve  # under its own name, so that what is pickled is found

    with Client(sys.argv[1], "AF_UNIX") as pipe:
        serve(pipe)
