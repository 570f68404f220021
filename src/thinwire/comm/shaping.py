"""Which queues make an interface as slow as a link?  Commands of ``tc`` for both ends of it (Linux, iproute2).

Each end holds one HTB class for each peer: on a rank's side by destination, on the hub's side by source.  Per node the
classes share one parent of the link's rate, and each may borrow what the others leave; per pair each has the rate to
itself.  Traffic with anything but a peer (ARP, the hub's own address) is not shaped.

choice: HTB for links per node too, rather than one token bucket (tbf).  One bucket is one queue, where a peer's
acknowledgements wait behind data for other peers and fast flows starve slow ones: an exchange of four ranks, all with
all, then took 1.12 to 1.4 times what its bytes need; with a queue for each peer, served in turn, 1.07 to 1.15.
"""

from collections.abc import Sequence
from typing import NamedTuple

from thinwire.comm.link import Link

FRAME_BYTES = 1514
"""A full Ethernet frame, as the queues count it: 1448 of TCP payload and 66 of headers."""
PAYLOAD_SHARE = 1448 / FRAME_BYTES
"""A link of R bit/s carries at most this part of R as TCP payload, as any link of that rate would."""
BURST_SECONDS = 0.001
TRAIN_SECONDS = 0.0004
QUEUE_SECONDS = 0.25
MIN_QUEUE_BYTES = 64 * 1024
MAX_TRAIN_BYTES = 64 * 1024
SHARED_CLASS = "1:ffff"


class Bucket(NamedTuple):
    """Sizes that follow from a rate.

    Attributes:
        burst_bytes: what may leave at once after a pause.
        queue_bytes: what may wait for one peer.
        frames_in_train: frames that the kernel hands over as one packet (segmentation offload).
    """

    burst_bytes: int
    queue_bytes: int
    frames_in_train: int


def bucket_for(bits_per_s: float) -> Bucket:
    """choice: a burst of 1 ms, at least two frames.

    A bucket refills while nobody looks: with less than the kernel's timers and a busy machine take to come back (a few
    0.1 ms), tokens are lost and a flow stays below its rate; what is in it passes free, and 1 ms is less than any wide
    area's latency.  HTB sends a packet whole once it has any token, so packets of several frames are kept below the
    burst; at 1 Gbit/s without them two cores cannot keep up.  Queues of 0.25 s, so that many senders at once lose no
    packet (a lost tail costs TCP 200 ms, which the link would not).
    """
    bytes_per_s = bits_per_s / 8
    return Bucket(
        burst_bytes=max(2 * FRAME_BYTES, round(bytes_per_s * BURST_SECONDS)),
        queue_bytes=max(MIN_QUEUE_BYTES, round(bytes_per_s * QUEUE_SECONDS)),
        frames_in_train=max(1, int(min(MAX_TRAIN_BYTES, bytes_per_s * TRAIN_SECONDS)) // FRAME_BYTES),
    )


class Side(NamedTuple):
    """One end of a rank's cable.

    Attributes:
        device: the interface that sends.
        match: which address of a packet names the peer, ``dst`` at the rank, ``src`` at the hub.
        peers: IPv4 addresses of the other ranks.
    """

    device: str
    match: str
    peers: Sequence[str]


def shaping_commands(link: Link, side: Side) -> list[str]:
    """Lines for ``tc -batch`` on an interface without queues; the first peer has class 1:1."""
    device, bucket, rate = side.device, bucket_for(link.bits_per_s), round(link.bits_per_s)
    quantum = bucket.frames_in_train * FRAME_BYTES
    whole = f"ceil {rate}bit cburst {bucket.burst_bytes} quantum {quantum}"
    lines = [f"qdisc add dev {device} root handle 1: htb"]
    parent, share, burst = "1:", rate, bucket.burst_bytes
    if link.per == "node":
        parent, share = SHARED_CLASS, max(1, rate // len(side.peers))
        lines.append(
            f"class add dev {device} parent 1: classid {parent} htb rate {rate}bit burst {bucket.burst_bytes} {whole}"
        )
        burst = max(FRAME_BYTES, bucket.burst_bytes // len(side.peers))
    for number, peer in enumerate(side.peers, start=1):
        own = f"1:{number:x}"
        lines += [
            f"class add dev {device} parent {parent} classid {own} htb rate {share}bit burst {burst} {whole}",
            f"qdisc add dev {device} parent {own} {_queue(link, bucket, side)}",
            f"filter add dev {device} parent 1: protocol ip prio 1 u32 match ip {side.match} {peer}/32 flowid {own}",
        ]
    return lines


def _queue(link: Link, bucket: Bucket, side: Side) -> str:
    """The delay, one way, is spent at the hub, so that the sender's kernel sees its own queue drain."""
    if link.delay_seconds == 0 or side.match == "dst":
        return f"bfifo limit {bucket.queue_bytes}"
    under_way = link.bits_per_s / 8 * link.delay_seconds
    packets = round((bucket.queue_bytes + under_way) / FRAME_BYTES) + 1
    return f"netem delay {round(link.delay_seconds * 1e6)}us limit {packets}"


def unshaping_commands(device: str) -> list[str]:
    """Lines for ``tc -batch`` that leave the interface without a queue."""
    return [f"qdisc del dev {device} root"]
