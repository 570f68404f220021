"""Are shaped links as slow as they say, shared as they say, counted right, and gone afterwards?"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from link_flows import Arrival, Flow, transfer
from thinwire.base.errors import RunFailedError, UserError
from thinwire.comm import netlab
from thinwire.comm.link import Link
from thinwire.comm.netlab import Lab, laboratory, unavailable
from thinwire.comm.shaping import PAYLOAD_SHARE, Side, bucket_for, shaping_commands, unshaping_commands

ATTEMPTS = 12
"""Other work on the machine can make a transfer slower; nothing can make it faster than its link."""

NETEM = ("add", "dev", "lo", "root", "netem", "delay", "1ms")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := unavailable():
        pytest.skip(f"no shaped links here: {reason}")
    with laboratory(3, link=None) as made:
        yield made


def measured(lab: Lab, flows: list[Flow], *, good: Callable[[list[Arrival]], bool]) -> list[Arrival]:
    """The first attempt that is good enough, else the last."""
    for _ in range(ATTEMPTS):
        arrivals = transfer(lab, flows)
        assert [arrival.num_bytes for arrival in arrivals] == [flow.num_bytes for flow in flows]
        if good(arrivals):
            break
    return arrivals


def shares_of(arrivals: list[Arrival], rate: float) -> list[float]:
    return [arrival.bits_per_s / rate for arrival in arrivals]


@pytest.mark.parametrize("per", ["node", "pair"])
@pytest.mark.parametrize("rate", [20e6, 100e6])
def test_one_flow_has_the_rate_of_the_link(lab: Lab, rate: float, per: str) -> None:
    """Within 10 %, of which 4.4 % are headers; a burst at each end is all that may pass faster."""
    lab.shape(Link(rate, per=per))
    flow = Flow(0, 1, round(rate * 0.3 / 8))
    (arrival,) = measured(lab, [flow], good=lambda ends: ends[0].bits_per_s > 0.9 * rate)
    assert arrival.bits_per_s > 0.9 * rate
    free = 2 * bucket_for(rate).burst_bytes
    assert arrival.seconds > (flow.num_bytes / PAYLOAD_SHARE - free) * 8 / rate


def test_a_short_message_is_not_free(lab: Lab) -> None:
    """60 kB on 5 Mbit/s take 100 ms; a bucket of that size would let them through at once."""
    lab.shape(Link(5e6))
    flow = Flow(0, 1, 60_000)
    (arrival,) = transfer(lab, [flow])
    assert arrival.seconds > (60_000 / PAYLOAD_SHARE - 2 * 2 * 1514) * 8 / 5e6


@pytest.mark.parametrize("flows", [[(1, 0), (2, 0)], [(0, 1), (0, 2)]], ids=["into one node", "out of one node"])
def test_a_link_per_node_is_shared(lab: Lab, flows: list[tuple[int, int]]) -> None:
    rate = 40e6
    lab.shape(Link(rate))
    both = [Flow(source, to, round(rate * 0.2 / 8)) for source, to in flows]
    arrivals = measured(lab, both, good=lambda ends: min(shares_of(ends, rate)) > 0.44)
    shares = shares_of(arrivals, rate)
    assert min(shares) > 0.44
    assert max(shares) < 0.56
    assert sum(shares) < 1.0


@pytest.mark.parametrize("flows", [[(1, 0), (2, 0)], [(0, 1), (0, 2)]], ids=["into one node", "out of one node"])
def test_links_per_pair_are_not_shared(lab: Lab, flows: list[tuple[int, int]]) -> None:
    rate = 40e6
    lab.shape(Link(rate, per="pair"))
    both = [Flow(source, to, round(rate * 0.3 / 8)) for source, to in flows]
    arrivals = measured(lab, both, good=lambda ends: min(shares_of(ends, rate)) > 0.88)
    shares = shares_of(arrivals, rate)
    assert min(shares) > 0.88
    assert max(shares) < 1.0


def test_the_two_directions_of_a_link_are_not_shared(lab: Lab) -> None:
    """Acknowledgements take their part, data do not."""
    rate = 40e6
    lab.shape(Link(rate))
    both = [Flow(0, 1, 1_500_000), Flow(1, 0, 1_500_000)]
    arrivals = measured(lab, both, good=lambda ends: min(shares_of(ends, rate)) > 0.84)
    assert min(shares_of(arrivals, rate)) > 0.84


def test_without_a_link_it_is_as_fast_as_the_machine(lab: Lab) -> None:
    lab.shape(Link(20e6))
    lab.shape(None)
    listed = subprocess.run([*lab.prefix(0), "tc", "qdisc"], capture_output=True, text=True, check=True).stdout
    assert "htb" not in listed
    arrivals = measured(lab, [Flow(0, 1, 10_000_000)], good=lambda ends: ends[0].bits_per_s > 200e6)
    assert arrivals[0].bits_per_s > 200e6


@pytest.mark.parametrize("link", [None, Link(100e6), Link(100e6, per="pair")], ids=["unshaped", "node", "pair"])
def test_counters_of_the_interface_agree_with_the_bytes(lab: Lab, link: Link | None) -> None:
    """On a busy machine TCP sends small packets, and some twice: the best of a few transfers counts."""
    lab.shape(link)
    excess = []
    for _ in range(ATTEMPTS):
        before = [lab.nic_bytes(rank) for rank in range(3)]
        transfer(lab, [Flow(0, 1, 2_000_000), Flow(0, 2, 1_000_000)])
        after = [lab.nic_bytes(rank) for rank in range(3)]
        sent = after[0].sent - before[0].sent
        received = [new.received - old.received for new, old in zip(after, before, strict=True)]
        pairs = ((sent, 3_000_000), (received[1], 2_000_000), (received[2], 1_000_000))
        assert all(counted > num_bytes for counted, num_bytes in pairs)
        assert received[0] < 0.06 * 3_000_000  # acknowledgements
        excess.append(max(counted - 1.03 * num_bytes / PAYLOAD_SHARE for counted, num_bytes in pairs))
        if excess[-1] < 5_000:
            break
    assert min(excess) < 5_000


def names() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines()]


def made_by(pid: int) -> set[str]:
    return {name for name in names() if name.startswith(f"thinwire-{pid}-")}


def test_everything_is_gone_after_an_error(lab: Lab) -> None:
    before = made_by(os.getpid())

    def fail_inside() -> None:
        with laboratory(2, link=Link(1e6)) as second:
            assert len(made_by(os.getpid()) - before) == 3
            assert second.prefix(0) != lab.prefix(0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_inside()
    assert made_by(os.getpid()) == before


def test_nothing_is_left_when_making_one_fails(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    before = made_by(os.getpid())
    monkeypatch.setattr(netlab, "shaping_commands", lambda *_: ["qdisc add dev link0 root nonsense"])
    monkeypatch.setattr(netlab, "unavailable", lambda: None)
    with pytest.raises(RunFailedError, match=r"tc -n thinwire-.* failed: .*unknown"), laboratory(2, link=Link(1e6)):
        pass
    assert made_by(os.getpid()) == before
    assert lab.nic_bytes(0).received > 0


def in_a_fork(work: Callable[[], None]) -> int:
    """A process that makes a laboratory and then waits to be killed."""
    ready, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        with laboratory(2, link=Link(1e6)):
            work()
            os.write(say, b"1")
            signal.pause()
        os._exit(1)
    os.close(say)
    assert os.read(ready, 1) == b"1"
    os.close(ready)
    return pid


@pytest.mark.usefixtures("lab")
def test_a_killed_process_leaves_nothing_after_the_next_laboratory() -> None:
    pid = in_a_fork(lambda: None)
    ours = made_by(os.getpid())
    with laboratory(1, link=None):
        assert len(made_by(pid)) == 3  # its maker lives: another laboratory leaves it alone
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert len(made_by(pid)) == 3
    with laboratory(1, link=None):
        assert not made_by(pid)
        assert len(made_by(os.getpid()) - ours) == 2
    assert made_by(os.getpid()) == ours


def test_a_number_used_again_by_another_process_does_not_save_leftovers(lab: Lab) -> None:
    stale = f"thinwire-{os.getpid()}-1-0-hub"
    subprocess.run(["ip", "netns", "add", stale], check=True)
    with laboratory(1, link=None):
        assert stale not in names()
    assert lab.nic_bytes(0).received > 0


def test_two_laboratories_do_not_hear_each_other(lab: Lab) -> None:
    lab.shape(None)
    with laboratory(3, link=Link(1e6)) as other:
        assert other.addresses == lab.addresses
        assert not {other.prefix(rank) for rank in range(3)} & {lab.prefix(rank) for rank in range(3)}
        before = other.nic_bytes(1)
        (arrival,) = measured(lab, [Flow(0, 1, 1_000_000)], good=lambda ends: ends[0].bits_per_s > 100e6)
        assert arrival.bits_per_s > 100e6  # the other one's link does not slow it
        assert other.nic_bytes(1).received - before.received < 2_000


def test_ranks_reach_the_hub(lab: Lab) -> None:
    lab.shape(Link(1e6))
    argv = [*lab.prefix(2), "ip", "route", "get", lab.hub_address]
    assert f"dev {lab.interface}" in subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    own = subprocess.run([*lab.hub_prefix(), "ip", "address"], capture_output=True, text=True, check=True).stdout
    assert f"{lab.hub_address}/24" in own


def test_a_rank_that_does_not_exist_is_refused(lab: Lab) -> None:
    for call in (lab.prefix, lab.environment, lab.nic_bytes):
        with pytest.raises(ValueError, match="no rank 3 among 3"):
            call(3)
    assert lab.environment(2)["GLOO_SOCKET_IFNAME"] == "link0"
    for number in (0, 251):
        with pytest.raises(ValueError, match="1 to 250 ranks"), laboratory(number, link=None):
            pass


def test_a_delay_that_the_kernel_cannot_make_is_refused(lab: Lab) -> None:
    lab.shape(Link(20e6))
    on_hub = [*lab.hub_prefix(), "tc", "qdisc"]
    if subprocess.run([*on_hub, *NETEM], capture_output=True, check=False).returncode == 0:
        subprocess.run([*on_hub, "del", "dev", "lo", "root"], check=True)
        lab.shape(Link(20e6, delay_seconds=0.02))
        expected = "netem"
    else:
        with pytest.raises(UserError, match="cannot delay packets"):
            lab.shape(Link(20e6, delay_seconds=0.02))
        expected = "htb"  # the old link is in place
    assert expected in subprocess.run(on_hub, capture_output=True, text=True, check=True).stdout


def test_delay_is_spent_once_on_each_way() -> None:
    link = Link(100e6, delay_seconds=0.02)
    at_hub = shaping_commands(link, Side("rank0", "src", ["10.77.0.2"]))
    at_rank = shaping_commands(link, Side("link0", "dst", ["10.77.0.2"]))
    # 250 ms may wait, 20 ms are under way
    assert "qdisc add dev rank0 parent 1:1 netem delay 20000us limit 2230" in at_hub
    assert not any("netem" in line for line in at_rank)
    assert unshaping_commands("rank0") == ["qdisc del dev rank0 root"]


@pytest.mark.parametrize("rate", [1e3, 5e6, 20e6, 100e6, 1e9, 25e9])
def test_buckets_suit_their_rate(rate: float) -> None:
    bucket = bucket_for(rate)
    assert bucket.burst_bytes == max(3028, round(rate / 8000))
    assert bucket.frames_in_train * 1514 <= max(bucket.burst_bytes, 1514)
    assert bucket.frames_in_train * 1514 <= 65_536
    assert bucket.queue_bytes >= 2 * bucket.burst_bytes


def test_the_reason_is_given_where_there_can_be_no_laboratory(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        assert unavailable() == "network namespaces need root, and this process is not root"
        with pytest.raises(UserError, match="not root") as caught, laboratory(2, link=None):
            pass
        assert "link model" in caught.value.fix
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with monkeypatch.context() as patch:
        patch.setattr(netlab.shutil, "which", lambda tool: None if tool == "tc" else tool)
        assert unavailable() == "tc of iproute2 cannot be found"
    monkeypatch.setattr(netlab.shutil, "which", lambda tool: tool)

    def refuse(*_: object, **__: object) -> str:
        raise RunFailedError("Operation not permitted")

    monkeypatch.setattr(netlab, "_call", refuse)
    assert "the kernel gives no network namespace: Operation not permitted" in str(unavailable())
