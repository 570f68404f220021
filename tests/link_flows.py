"""Plain TCP between ranks of a laboratory: who sent how much, and when had it all arrived?

Run as a script it is one rank: it connects on the first line of its input, starts at the time that the second one
names, and prints how many bytes each flow into it brought and when the last of them came (CLOCK_MONOTONIC).
"""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from thinwire.comm.netlab import Lab

PORT = 5000
PIECE_BYTES = 1 << 18
READY_SECONDS = 0.1


class Flow(NamedTuple):
    source: int
    to: int
    num_bytes: int


class Arrival(NamedTuple):
    """One flow's end: seconds from the common start to its last byte."""

    source: int
    to: int
    num_bytes: int
    seconds: float

    @property
    def bits_per_s(self) -> float:
        return 8 * self.num_bytes / self.seconds


def transfer(lab: "Lab", flows: Sequence[Flow]) -> list[Arrival]:
    """Let all flows start at once and wait for the last; the arrivals are in the order of the flows."""
    ranks = sorted({rank for flow in flows for rank in flow[:2]})
    shared = [json.dumps(lab.addresses), json.dumps(flows)]
    processes = {
        rank: subprocess.Popen(
            [*lab.prefix(rank), sys.executable, "-S", "-E", __file__, str(rank), *shared],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in ranks
    }
    try:
        for say in ("listens", "connected"):
            for process in processes.values():
                assert process.stdout is not None
                assert process.stdout.readline() == f"{say}\n"
            line = "connect" if say == "listens" else repr(time.monotonic() + READY_SECONDS)
            for process in processes.values():
                assert process.stdin is not None
                process.stdin.write(f"{line}\n")
                process.stdin.flush()
        start = float(line)
        ends = {}
        for rank, process in processes.items():
            for source, num_bytes, end in json.loads(process.communicate(timeout=60)[0]):
                ends[source, rank] = Arrival(source, rank, num_bytes, end - start)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    return [ends[flow.source, flow.to] for flow in flows]


def _send(connection: socket.socket, num_bytes: int) -> None:
    piece = memoryview(bytes(min(num_bytes, PIECE_BYTES)))
    while num_bytes > 0:
        num_bytes -= connection.send(piece[:num_bytes])
    connection.shutdown(socket.SHUT_WR)


def _receive(connection: socket.socket, source: int, ends: list[tuple[int, int, float]]) -> None:
    buffer, total, last = bytearray(PIECE_BYTES), 0, 0.0
    while count := connection.recv_into(buffer):
        total, last = total + count, time.monotonic()
    ends.append((source, total, last))


def _be_rank(rank: int, addresses: list[str], flows: list[Flow]) -> None:
    """Flows out of and into this rank; the first byte of a connection says who sends."""
    outgoing, incoming = ([flow for flow in flows if flow[side] == rank] for side in (0, 1))
    server = socket.create_server((addresses[rank], PORT), backlog=len(addresses))
    print("listens", flush=True)
    sys.stdin.readline()
    senders = [(socket.create_connection((addresses[flow.to], PORT)), flow.num_bytes) for flow in outgoing]
    for connection, _ in senders:
        connection.send(bytes([rank]))
    receivers = [server.accept()[0] for _ in incoming]
    ends: list[tuple[int, int, float]] = []
    threads = [threading.Thread(target=_send, args=sender) for sender in senders]
    threads += [threading.Thread(target=_receive, args=(one, one.recv(1)[0], ends)) for one in receivers]
    print("connected", flush=True)
    time.sleep(max(0.0, float(sys.stdin.readline()) - time.monotonic()))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(ends), flush=True)


if __name__ == "__main__":
    _be_rank(int(sys.argv[1]), json.loads(sys.argv[2]), [Flow(*flow) for flow in json.loads(sys.argv[3])])
