"""How does a rank's process open the run it belongs to?  Configuration, data, store, device; then it trains."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import thinwire
from thinwire.base.progress import Task
from thinwire.comm.ledger import Ledger
from thinwire.comm.link import Link, LinkEnd
from thinwire.comm.process import open_store
from thinwire.data.corpus import Corpus
from thinwire.data.reopen import reopen
from thinwire.data.tokens import open_tokens
from thinwire.runs.layout import RunFolder, patiently_exclusive
from thinwire.subspaces.config import LaunchConfig, SubspacesConfig, read_config
from thinwire.subspaces.device import training_device
from thinwire.subspaces.rank_run import Launcher, NoLauncher, RankRun, Surroundings, identity_of
from thinwire.subspaces.saving import rank_folder
from thinwire.subspaces.team import Meeting, meeting_place
from thinwire.subspaces.trainer import Compute, Texts


@dataclass(frozen=True)
class Seat:
    """A process's place among the ranks of a run.

    Attributes:
        member: its name, 0..ranks-1.
        host, port: the store where all meet.
        role: ``serve`` serves that store too; ``start`` begins with all others; ``join`` comes to a run under way.
        threads: for arithmetic.
        attempt: a store that outlives the ranks has one meeting place for each time they were started.
    """

    member: int
    host: str
    port: int
    role: str
    threads: int
    attempt: int = 0


def run_rank(
    root: Path,
    *,
    seat: Seat,
    task: Task,
    say: Callable[[str], None],
    should_stop: Callable[[], bool],
    launcher: Launcher | None = None,
) -> None:
    """Train one rank of the run in ``root`` to its end.

    Raises:
        UserError: the run's settings or data differ between the ranks, or a file is missing or damaged.
        InterruptedRunError: ``should_stop`` said so, here or on another rank.
        RunFailedError: the ranks did not meet, or a loss was not finite.
    """
    folder = RunFolder(root)
    config, corpus = read_config(folder), reopen(folder.read_data_record())
    with patiently_exclusive(rank_folder(root, seat.member), seconds=config.launch.timeout_seconds):
        train_rank(
            config,
            corpus=corpus,
            root=root,
            seat=seat,
            task=task,
            say=say,
            should_stop=should_stop,
            launcher=launcher,
        )


def train_rank(
    config: SubspacesConfig,
    *,
    corpus: Corpus,
    root: Path,
    seat: Seat,
    task: Task,
    say: Callable[[str], None],
    should_stop: Callable[[], bool],
    launcher: Launcher | None = None,
) -> None:
    """As ``run_rank``, with the run's parts at hand."""
    torch.set_num_threads(seat.threads)
    launch = config.launch
    store = open_store(
        host=seat.host, port=seat.port, serve=seat.role == "serve", timeout_seconds=launch.meeting_seconds
    )
    compute = compute_of(launch, member=seat.member)
    meeting = Meeting(
        meeting_place(store, attempt=seat.attempt),
        member=seat.member,
        timeout_seconds=launch.timeout_seconds,
        first_seconds=launch.meeting_seconds,
        link=link_of(launch),
        device=compute.device,
        ledger=Ledger(),
        should_stop=should_stop,
    )
    identity = identity_of(config, data=corpus.fingerprint, version=thinwire.__version__)
    rank = RankRun(
        config,
        around=Surroundings(root, meeting, identity, task, say, should_stop, launcher or NoLauncher()),
        texts=Texts(open_tokens(corpus, "train"), open_tokens(corpus, "valid")),
        compute=compute,
    )
    rank.run(is_new=seat.role == "join")


def link_of(launch: LaunchConfig) -> LinkEnd | None:
    """This process's end of the link model that messages obey, if any."""
    if launch.link_bits_per_s <= 0:
        return None
    return LinkEnd(Link(launch.link_bits_per_s, per=launch.link_per, delay_seconds=launch.link_delay_seconds))


def compute_of(launch: LaunchConfig, *, member: int) -> Compute:
    """Device and precision of one rank.

    Raises:
        UserError: a device that is asked for by name is not there.
    """
    device = training_device(launch, member=member)
    mixed = launch.precision == "bfloat16" or (launch.precision == "auto" and device.type == "cuda")
    return Compute(device, is_mixed=mixed)
