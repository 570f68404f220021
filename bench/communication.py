"""How fast does a context-parallel model train over thin links, plain and compressed?  Real TCP, shaped by ``tc``.

``python bench/communication.py [--json] [--repeats N]``, as root on Linux with iproute2.  Four ranks train in network
namespaces of their own.  For each link model, per node and per pair, the contestants take turns, round after round:
plain and compressed on cables as fast as the machine goes, both on shaped cables, and both on fast cables with the
model of the same link (``comm/link.py``).  Medians of the rounds, (largest - smallest) / median beside them.

The link is chosen from the plain step's time on fast cables: its bytes alone, one direction after the other, then take
``--slowdown`` times as long.  Training has both directions under way at once, so the default is above the 20 wanted.

First of all, and after every block of steps: losses and gradients are finite, the bytes counted where they are sent
equal the closed form, and the interfaces' own counters agree with them within 3 %, headers (66 bytes a packet), gloo's
notices (144 bytes a message) and what goes to the store set apart.  Where that fails no speed is printed (exit 1).

Weights are not averaged while steps are timed; the bytes of one average stand beside the others.  The slowdown and the
ratio of compressed to plain are of one machine, whose cores all ranks share.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from communication_ranks import BenchRanks, Block, bench_ranks
from thinwire.base.errors import RunFailedError, UserError
from thinwire.comm.link import Link
from thinwire.comm.netlab import Lab, laboratory
from thinwire.comm.shaping import PAYLOAD_SHARE
from thinwire.plan.step_time import link_seconds
from thinwire.subspaces.config import (
    CodecConfig,
    LaunchConfig,
    LlamaConfig,
    OptimizerConfig,
    PhasesConfig,
    SequenceConfig,
    SubspacesConfig,
    SyncConfig,
    check,
)
from thinwire.subspaces.traffic import Traffic, step_traffic

NUM_RANKS = 4
NIC_TOLERANCE = 0.03
GLOO_BYTES = 3 * 48
"""Of a message beside its own: notices that sender and receiver are ready, and the header in front of the data."""
NO_END = 1_000_000
"""Steps without an average of the weights, a checkpoint or another phase."""
VOCAB_SIZE = 256
Per = Literal["node", "pair"]


class Contest(NamedTuple):
    """What takes part, and how often.

    Attributes:
        configs: by name, ``plain`` and ``compressed``.
        repeats: rounds.
        steps: of a block; a plain one on a thin link has one.
        slowdown: how many times a plain step its bytes alone shall take on the link.
    """

    configs: dict[str, SubspacesConfig]
    repeats: int
    steps: int
    slowdown: float

    @property
    def tokens_per_step(self) -> int:
        size = self.configs["plain"].sequence
        return size.tokens * size.sequences_per_step

    def traffic(self, codec: str) -> Traffic:
        phase: Literal["plain", "compressed"] = "plain" if codec == "plain" else "compressed"
        return step_traffic(self.configs[codec], vocab_size=VOCAB_SIZE, phase=phase)


def make_contest(arguments: argparse.Namespace) -> Contest:
    """Raises ConfigError where the settings make no run."""
    plain = SubspacesConfig(
        model=LlamaConfig(
            layers=arguments.layers,
            width=arguments.width,
            heads=arguments.width // 64,
            kv_heads=arguments.width // 64,
            head_width=64,
            hidden=arguments.width * 11 // 4,
        ),
        sequence=SequenceConfig(tokens=arguments.tokens, chunks=2 * NUM_RANKS, streams=arguments.streams),
        codec=CodecConfig(kind="plain", theta_source=arguments.theta_source),
        optimizer=OptimizerConfig(steps=NO_END),
        phases=PhasesConfig(warmup_steps=0, warmup_tokens=1, unplug="never"),
        sync=SyncConfig(every=NO_END),
        launch=LaunchConfig(ranks=NUM_RANKS, threads=1, device="cpu"),
        checkpoint_every=NO_END,
    )
    compressed = replace(plain, codec=replace(plain.codec, kind="subspace"))
    check(compressed, where="bench/communication.py")
    return Contest({"plain": plain, "compressed": compressed}, arguments.repeats, arguments.steps, arguments.slowdown)


class Referee:
    """Runs blocks of steps, keeps them, and notes what is wrong with any."""

    def __init__(self, contest: Contest, ranks: BenchRanks) -> None:
        self.contest, self._ranks = contest, ranks
        self.wrong: list[str] = []

    def run(self, codec: str, team: str, *, steps: int, name: str) -> Block:
        block = self._ranks.train(codec, team, steps=steps)
        if not block.is_finite:
            self._refuse(f"{name}: a loss or a gradient is not finite")
        formula = self.contest.traffic(codec).by_tag()
        for tag in ("kv-forward", "kv-backward", "theta"):
            counted = block.ledger.get(tag, 0)
            if counted != formula[tag]:
                self._refuse(f"{name}: {counted:,} bytes of {tag} were counted, {formula[tag]:,} by the closed form")
        if team == "cables":  # a modelled link's time stamps travel too, and are no traffic
            sent = sum(block.ledger.values()) + GLOO_BYTES * block.num_messages
            error = block.nic_bytes / sent - 1
            if not abs(error) <= NIC_TOLERANCE:
                self._refuse(f"{name}: the interfaces counted {error:+.1%} of what was sent")
        return block

    def check_average(self, codec: str) -> None:
        counted, formula = self._ranks.sync_bytes(codec, "cables"), self.contest.traffic(codec).by_tag()["sync"]
        if counted != formula:
            self._refuse(f"{codec}: {counted:,} bytes of an average were counted, {formula:,} by the closed form")

    def _refuse(self, what: str) -> None:
        if what not in self.wrong:
            self.wrong.append(what)


def link_for(contest: Contest, *, per: Per, plain_seconds: float) -> Link:
    """On which the bytes of a plain step take ``slowdown`` times ``plain_seconds``, headers included."""
    bits = sum(link_seconds(part, link=Link(1.0, per=per)) for part in contest.traffic("plain").exchanges())
    return Link(bits / PAYLOAD_SHARE / (contest.slowdown * plain_seconds), per=per)


def measure(referee: Referee, lab: Lab, ranks: BenchRanks, *, link: Link) -> dict[str, list[Block]]:
    """All blocks of one link by contestant. The model of the link runs plain once: it is exact, and slow."""
    contest, model = referee.contest, f"model-{link.per}"
    ranks.open(model, Link(link.bits_per_s * PAYLOAD_SHARE, per=link.per))
    found: dict[str, list[Block]] = {}

    def run(codec: str, where: str, *, steps: int) -> None:
        name = f"{codec}_{where}"
        team = model if where == "model" else "cables"
        found.setdefault(name, []).append(referee.run(codec, team, steps=steps, name=f"{name}, per {link.per}"))

    for number in range(contest.repeats):
        lab.shape(None)
        run("plain", "unshaped", steps=contest.steps)
        run("compressed", "unshaped", steps=contest.steps)
        if number == 0:
            run("plain", "model", steps=1)
        run("compressed", "model", steps=contest.steps)
        lab.shape(link)
        run("compressed", "shaped", steps=contest.steps)
        run("plain", "shaped", steps=1)
    lab.shape(None)
    return found


def row_of(contest: Contest, link: Link, found: dict[str, list[Block]]) -> dict[str, Any]:
    """One object of the result; the first keys are the contract's."""
    seconds = {name: statistics.median(block.seconds for block in blocks) for name, blocks in found.items()}
    speed = {name: contest.tokens_per_step / value for name, value in seconds.items()}
    sent = {codec: contest.traffic(codec).exchange_bytes for codec in contest.configs}
    nic = {codec: statistics.median(b.nic_bytes for b in found[f"{codec}_shaped"]) for codec in contest.configs}
    frames = {
        codec: statistics.median(b.nic_frame_bytes for b in found[f"{codec}_shaped"]) for codec in contest.configs
    }
    return {
        "link_model": f"per-{link.per}",
        "link_bits_per_s": link.bits_per_s,
        "plain_unshaped_tokens_per_s": speed["plain_unshaped"],
        "plain_shaped_tokens_per_s": speed["plain_shaped"],
        "compressed_shaped_tokens_per_s": speed["compressed_shaped"],
        "compressed_unshaped_tokens_per_s": speed["compressed_unshaped"],
        "plain_slowdown": seconds["plain_shaped"] / seconds["plain_unshaped"],
        "compressed_over_plain_unshaped": speed["compressed_shaped"] / speed["plain_unshaped"],
        "link_model_tokens_per_s": {codec: speed[f"{codec}_model"] for codec in contest.configs},
        "link_model_over_shaped": {
            codec: speed[f"{codec}_model"] / speed[f"{codec}_shaped"] for codec in contest.configs
        },
        "wire_bytes_plain": sent["plain"],
        "wire_bytes_compressed": sent["compressed"],
        "wire_share": sent["compressed"] / sent["plain"],
        "nic_bytes_plain": nic["plain"],
        "nic_bytes_compressed": nic["compressed"],
        "nic_frame_bytes_plain": frames["plain"],
        "nic_frame_bytes_compressed": frames["compressed"],
        "sync_bytes_of_one_average": {codec: contest.traffic(codec).by_tag()["sync"] for codec in contest.configs},
        "seconds": seconds,
        "spreads": {name: _spread([block.seconds for block in blocks]) for name, blocks in found.items()},
        "waited_seconds": {name: statistics.median(b.waited_seconds for b in blocks) for name, blocks in found.items()},
        "busy_seconds": {name: statistics.median(b.busy_seconds for b in blocks) for name, blocks in found.items()},
        "tokens_per_step": contest.tokens_per_step,
        "streams": contest.configs["plain"].sequence.streams,
        "theta_source": contest.configs["compressed"].codec.theta_source,
        "repeats": contest.repeats,
        "steps": contest.steps,
    }


def _spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values)


def as_text(row: dict[str, Any]) -> str:
    """For a person."""
    lines = [f"{row['link_model']} links of {row['link_bits_per_s'] / 1e6:.1f} Mbit/s (median of {row['repeats']})"]
    for name, seconds in row["seconds"].items():
        speed, spread, waited = row["tokens_per_step"] / seconds, row["spreads"][name], row["waited_seconds"][name]
        name = name.replace("_", ", ")
        lines.append(
            f"  {name:22s}{speed:9.0f} tokens/s  [{spread:.0%}]  {seconds:.2f} s a step, {waited:.2f} s waiting"
        )
    lines += [
        f"  plain, shaped: slower than unshaped by         {row['plain_slowdown']:.1f} x",
        f"  compressed, shaped: of plain's unshaped speed  {row['compressed_over_plain_unshaped']:.3f}",
    ]
    for codec in ("plain", "compressed"):
        wire, nic, model = row[f"wire_bytes_{codec}"], row[f"nic_bytes_{codec}"], row["link_model_over_shaped"][codec]
        lines.append(f"  {codec}: {wire:,} bytes a step ({nic:,.0f} by the interfaces), link model {model:.3f} of tc")
    return "\n".join([*lines, f"  compressed bytes, of plain's                   {row['wire_share']:.2%}"])


def compete(
    contest: Contest, links: Sequence[Per], *, print_row: Callable[[dict[str, Any]], None]
) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows, or what is wrong."""
    with laboratory(NUM_RANKS, link=None) as lab, bench_ranks(lab, contest.configs) as ranks:
        referee = Referee(contest, ranks)
        for codec in contest.configs:
            referee.check_average(codec)
            referee.run(codec, "cables", steps=1, name=f"{codec}, first step")
        rows: list[dict[str, Any]] = []
        for per in links:
            if referee.wrong:
                break
            blocks = [referee.run("plain", "cables", steps=contest.steps, name="plain, before") for _ in range(2)]
            link = link_for(contest, per=per, plain_seconds=min(block.seconds for block in blocks))
            found = measure(referee, lab, ranks, link=link)
            if not referee.wrong:
                rows.append(row_of(contest, link, found))
                print_row(rows[-1])
        return rows, referee.wrong


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/communication.py", description="Training over thin links.")
    parser.add_argument("--json", action="store_true", help="print one JSON list, one object a link model")
    parser.add_argument("--links", nargs="+", choices=("node", "pair"), default=["node", "pair"], help="per what")
    parser.add_argument("--repeats", type=int, default=2, help="timed rounds a link model (default 2)")
    parser.add_argument("--steps", type=int, default=3, help="steps of a block that is not slowed down (default 3)")
    parser.add_argument("--slowdown", type=float, default=23.0, help="of plain by its bytes alone (default 23)")
    parser.add_argument("--width", type=int, default=512, help="d, a multiple of 64 (default 512)")
    parser.add_argument("--layers", type=int, default=2, help="decoder blocks (default 2)")
    parser.add_argument("--tokens", type=int, default=2048, help="n, of a sequence (default 2048)")
    parser.add_argument("--streams", type=int, default=3, help="sequences that interleave (default 3)")
    parser.add_argument(
        "--theta-source", choices=("chunk", "previous_chunk", "none"), default="previous_chunk", help="whose mean turns"
    )
    arguments = parser.parse_args(argv)
    if min(arguments.repeats, arguments.steps) < 1 or not arguments.slowdown > 0:
        parser.error("--repeats, --steps and --slowdown must be above zero")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 1 where a check fails; 2 where no laboratory can be made or a setting is wrong."""
    arguments = parse(argv)

    def show(row: dict[str, Any]) -> None:
        if not arguments.json:
            print(as_text(row), flush=True)

    try:
        contest = make_contest(arguments)
        rows, wrong = compete(contest, arguments.links, print_row=show)
    except (UserError, RunFailedError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    if wrong:
        print("checks failed, so the speeds mean nothing:", *wrong, sep="\n  ", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
