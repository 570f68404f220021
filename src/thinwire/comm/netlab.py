"""How fast is a run on thin links?  Real TCP between ranks on one machine, through links as slow as one likes.

A laboratory is a hub and one network namespace for each rank, cabled by veth pairs to a bridge in the hub, with queues
on both ends of each cable (``shaping``).  Everything lies in namespaces named after the process that made them, so that
laboratories do not meet, and the next one removes what a killed process left.  Needs root, iproute2 and Linux.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from thinwire.base.errors import RunFailedError, UserError
from thinwire.comm.link import Link
from thinwire.comm.shaping import Side, bucket_for, shaping_commands, unshaping_commands

NAME = re.compile(r"thinwire-(?P<pid>\d+)-(?P<started>\d+)-\d+-\w+")
NETWORK = "10.77.0"
"""Any: it is seen in the laboratory's namespaces alone."""
HUB_ADDRESS = f"{NETWORK}.254"
MAX_RANKS = 250
INTERFACE = "link0"
CONGESTION_CONTROL = "cubic"
"""Linux's own default; a machine may have another, and results should not differ by it."""
COMMAND_SECONDS = 30.0


class NicBytes(NamedTuple):
    """Bytes that a rank's interface has sent and received, headers and retransmissions included."""

    sent: int
    received: int


def _call(argv: Sequence[str], *, lines: Sequence[str] = ()) -> str:
    """Standard output of one command, or of a batch of lines given to it.

    Raises:
        RunFailedError: with what the command said.
    """
    given = "".join(f"{line}\n" for line in lines)
    try:
        done = subprocess.run(argv, input=given, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise RunFailedError(f"'{' '.join(argv)}' does not answer") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise RunFailedError(f"'{' '.join(argv)}' failed: {said}")
    return done.stdout


def _start_ticks(pid: int) -> int | None:
    """When the process started, which with its number names it while the machine runs. None: no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _call(["ip", "netns", "list"]).splitlines() if line]


def _remove(names: Sequence[str]) -> None:
    """Another process may be sweeping the same ones."""
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=COMMAND_SECONDS, check=False)


def _sweep() -> None:
    """Remove laboratories whose maker is dead."""
    leftover = []
    for name in _namespaces():
        made_by = NAME.fullmatch(name)
        if made_by and _start_ticks(int(made_by["pid"])) != int(made_by["started"]):
            leftover.append(name)
    _remove(leftover)


def _claim(purpose: str) -> str:
    """Make the first free namespace thinwire-PID-START-N-PURPOSE; returns the name up to N."""
    pid = os.getpid()
    for number in range(10_000):
        prefix = f"thinwire-{pid}-{_start_ticks(pid)}-{number}"
        try:
            _call(["ip", "netns", "add", f"{prefix}-{purpose}"])
        except RunFailedError as error:
            if "File exists" not in str(error):
                raise
        else:
            return prefix
    raise RunFailedError("this process has 10,000 laboratories")


def unavailable() -> str | None:
    """Why no laboratory can be made here, in words, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root, and this process is not root"
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"{' and '.join(missing)} of iproute2 cannot be found"
    try:
        probe = f"{_claim('probe')}-probe"
    except RunFailedError as error:
        return f"the kernel gives no network namespace: {error}"
    try:
        _call(["ip", "-n", probe, "link", "add", INTERFACE, "type", "veth", "peer", "name", "rank0"])
        _call(["ip", "-n", probe, "link", "add", "bridge", "type", "bridge"])
        _call(["tc", "-n", probe, "-batch", "-"], lines=shaping_commands(Link(1e6), Side("lo", "dst", ["127.0.0.1"])))
    except RunFailedError as error:
        return f"the kernel lacks a part (veth, bridge, htb, u32 or bfifo): {error}"
    finally:
        _remove([probe])
    return None


class Lab:
    """Ranks in namespaces of their own, made by ``laboratory``.

    Attributes:
        addresses: IPv4 address of each rank.
        interface: name of the cable's end, the same in each rank's namespace.
        hub_address: IPv4 address of the hub, reached by every rank through its cable, at no shaped speed.
    """

    def __init__(self, prefix: str, *, num_ranks: int) -> None:
        self.addresses = tuple(f"{NETWORK}.{rank + 1}" for rank in range(num_ranks))
        self.interface, self.hub_address = INTERFACE, HUB_ADDRESS
        self._prefix = prefix
        self._shaped = False

    def prefix(self, rank: int) -> tuple[str, ...]:
        """What to put before a command that shall run as this rank; the process keeps its number."""
        return ("ip", "netns", "exec", self._namespace(rank))

    def hub_prefix(self) -> tuple[str, ...]:
        """What to put before a command that all ranks shall reach (a store) and that is no rank."""
        return ("ip", "netns", "exec", f"{self._prefix}-hub")

    def environment(self, rank: int) -> dict[str, str]:
        """Variables by which gloo and NCCL find the interface; without them they look the host's name up."""
        self._namespace(rank)
        return {"GLOO_SOCKET_IFNAME": self.interface, "NCCL_SOCKET_IFNAME": self.interface}

    def nic_bytes(self, rank: int) -> NicBytes:
        """Counters of the rank's interface since the laboratory was made (/proc/net/dev)."""
        for line in _call([*self.prefix(rank), "cat", "/proc/net/dev"]).splitlines():
            device, _, counters = line.partition(":")
            if device.strip() == self.interface:
                fields = [int(field) for field in counters.split()]
                return NicBytes(sent=fields[8], received=fields[0])
        raise RunFailedError(f"rank {rank} has lost its interface")

    def shape(self, link: Link | None) -> None:
        """Give every cable this link's rate from now on; None: as fast as the machine goes. What waits in it is lost.

        Raises:
            UserError: the link has a delay, and the kernel cannot delay packets.
        """
        if link is not None and link.delay_seconds > 0:
            self._require_delay()
        for rank, address in enumerate(self.addresses):
            peers = [peer for peer in self.addresses if peer != address]
            self._shape_end(self._namespace(rank), Side(self.interface, "dst", peers), link=link)
            self._shape_end(f"{self._prefix}-hub", Side(f"rank{rank}", "src", peers), link=link)
        self._shaped = link is not None

    def _shape_end(self, namespace: str, side: Side, *, link: Link | None) -> None:
        lines = unshaping_commands(side.device) if self._shaped else []
        if link is not None and side.peers:
            frames = bucket_for(link.bits_per_s).frames_in_train
            _call(["ip", "-n", namespace, "link", "set", side.device, "gso_max_segs", str(frames)])
            lines += shaping_commands(link, side)
        _call(["tc", "-n", namespace, "-batch", "-"], lines=lines)

    def _require_delay(self) -> None:
        on_hub = ["tc", "-n", f"{self._prefix}-hub", "qdisc"]
        try:
            _call([*on_hub, "add", "dev", "lo", "root", "netem", "delay", "1ms"])
        except RunFailedError as error:
            raise UserError(
                "this kernel cannot delay packets (it has no netem)",
                where="shaped-link laboratory, delay",
                fix="use a link without delay here, or the link model, which has delays everywhere",
            ) from error
        _call([*on_hub, "del", "dev", "lo", "root"])

    def _namespace(self, rank: int) -> str:
        if not 0 <= rank < len(self.addresses):
            raise ValueError(f"there is no rank {rank} among {len(self.addresses)}")
        return f"{self._prefix}-{rank}"


@contextmanager
def laboratory(num_ranks: int, *, link: Link | None) -> Iterator[Lab]:
    """A laboratory for ``num_ranks`` ranks whose cables have this link's rate; removed at the end, whatever happens.

    Processes inside are not ended: wait for them first.

    Raises:
        UserError: no laboratory can be made here, see ``unavailable``, or the link has a delay and the kernel none.
        RunFailedError: a command failed all the same.
    """
    if not 1 <= num_ranks <= MAX_RANKS:
        raise ValueError(f"a laboratory has 1 to {MAX_RANKS} ranks, not {num_ranks}")
    if reason := unavailable():
        fix = "run as root on Linux with iproute2, or use the link model, which needs neither"
        raise UserError(f"no shaped links here: {reason}", where="shaped-link laboratory", fix=fix)
    _sweep()
    prefix = _claim("hub")
    try:
        _cable(prefix, num_ranks=num_ranks)
        lab = Lab(prefix, num_ranks=num_ranks)
        if link is not None:
            lab.shape(link)
        yield lab
    finally:
        _remove([name for name in _namespaces() if name.startswith(f"{prefix}-")])


def _cable(prefix: str, *, num_ranks: int) -> None:
    """Namespaces, cables and addresses.  Without IPv6, whose own messages would be counted as traffic."""
    hub, ranks = f"{prefix}-hub", range(num_ranks)
    _call(["ip", "-batch", "-"], lines=[f"netns add {prefix}-{rank}" for rank in ranks])
    cables = [
        f"link add {INTERFACE} netns {prefix}-{rank} type veth peer name rank{rank} netns {hub}" for rank in ranks
    ]
    _call(["ip", "-batch", "-"], lines=cables)
    bridge = ["link add bridge type bridge", "link set bridge addrgenmode none", "link set bridge up"]
    ports = [f"link set rank{rank} addrgenmode none master bridge up" for rank in ranks]
    own = ["link set lo up", f"address add {HUB_ADDRESS}/24 dev bridge"]
    _call(["ip", "-n", hub, "-batch", "-"], lines=[*bridge, *ports, *own])
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    congestion = f" congctl {CONGESTION_CONTROL}" if CONGESTION_CONTROL in known else ""
    for rank in ranks:
        lines = [
            "link set lo up",
            f"link set {INTERFACE} addrgenmode none up",
            f"address add {NETWORK}.{rank + 1}/24 dev {INTERFACE}",
            f"route change {NETWORK}.0/24 dev {INTERFACE} src {NETWORK}.{rank + 1}{congestion}",
        ]
        _call(["ip", "-n", f"{prefix}-{rank}", "-batch", "-"], lines=lines)
