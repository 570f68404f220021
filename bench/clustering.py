"""How long does the whole clustering take, how much memory, and how fast are windows assigned and prefixes routed?

``python bench/clustering.py [--json] [--record] [--windows N] [--clusters N] [--data DATA] [--repeats N]``.  First the
compiled word counts are compared with scikit-learn's bit by bit, the balanced sizes are counted, one text routed alone
with the same in a batch, and one thread with two; where that fails no speed is printed (exit status 1).

Then a fresh process runs the product's pipeline as ``thinwire train`` does: tf-idf, truncated SVD, balanced spherical
k-means with the settings of appendix D on all windows, and their assignment.  Stages are timed as they open and close
their progress bars; memory is the most the process ever held (the text itself, about 1 kB a window, included).  After
that assignment by one thread and by two, scikit-learn's own way to it, and routing on 256-byte prefixes are timed in
turn, round after round: medians, and (largest - smallest) / median beside them.

The text is a prepared folder's (``--data``), or made up from a fixed seed.  Most of the work is searching and sorting
of words; the one part that multiplies matrices, similarity to the centroids, is also given as a fraction of the peak.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from clustering_checks import ACTIVE_EXPERTS, PREFIX_BYTES, SEED, failures, nearest_by_threads
from clustering_text import WINDOW_BYTES, windows_drawn, windows_of_corpus
from measuring import parsed, parser_of, publish
from thinwire.base.errors import UserError
from thinwire.kernels.peak import run_matrix_product, run_peak_loop
from thinwire.kernels.timing import timed_in_turn
from thinwire.soma.clusters import assign, fit_router
from thinwire.soma.config import ClusterConfig
from thinwire.soma.router import Router
from thinwire.soma.similarity import similarities
from thinwire.soma.text_features import decoded, tfidf_vectorizer

CHECKED_WINDOWS = 2048
TIMED_WINDOWS = 65_536
BASELINE_WINDOWS = 8192
ROUTED_ALONE = 512


class StageTimes:
    """A ``Progress`` that keeps how many seconds each bar was open."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def task(self, name: str, total: int | None) -> "OpenStage":  # noqa: ARG002
        return OpenStage(self, name)


class OpenStage:
    def __init__(self, times: StageTimes, name: str) -> None:
        self.times, self.name, self.started = times, name, time.perf_counter()

    def advance(self, count: int = 1) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        self.times.seconds[self.name] = time.perf_counter() - self.started


def read_text(data: Path | None, *, count: int) -> np.ndarray:
    return windows_drawn(count=count) if data is None else windows_of_corpus(data, count=count)


def measure(data: Path | None, *, num_windows: int, num_clusters: int, repeats: int) -> dict[str, Any]:
    """One row, in this process, which must be fresh for its memory to mean anything."""
    windows = read_text(data, count=num_windows)
    memory_before = peak_memory_bytes()
    config = ClusterConfig(num_clusters=num_clusters, sample_windows=num_windows)
    times = StageTimes()
    started = time.perf_counter()
    router = fit_router(lambda some: windows[some], num_windows=num_windows, config=config, seed=SEED, progress=times)
    fitted = time.perf_counter()
    assignment = assign(lambda some: windows[some], router=router, num_windows=num_windows, threads=2, progress=times)
    ended = time.perf_counter()
    sizes = np.bincount(assignment, minlength=num_clusters)
    row = {
        "case": f"{num_windows} windows, N={num_clusters}, {'made-up text' if data is None else 'prepared text'}",
        "implementation": "numba",
        "windows": num_windows,
        "num_clusters": num_clusters,
        "terms": len(router.vocabulary),
        "seconds": ended - started,
        "seconds_fit": fitted - started,
        **{f"seconds_{name.replace(' ', '_')}": seconds for name, seconds in times.seconds.items()},
        "peak_memory_bytes": peak_memory_bytes(),
        "text_memory_bytes": memory_before,
        "largest_cluster_over_mean": float(sizes.max() / sizes.mean()),
        "smallest_cluster_over_mean": float(sizes.min() / sizes.mean()),
    }
    return row | speeds(router, windows[:TIMED_WINDOWS], repeats=repeats)


def speeds(router: Router, windows: np.ndarray, *, repeats: int) -> dict[str, Any]:
    texts = [window.tobytes() for window in windows[:BASELINE_WINDOWS]]
    prefixes = [text[:PREFIX_BYTES] for text in texts]
    active = min(ACTIVE_EXPERTS, router.num_clusters)
    points = router.embed(texts)
    vectorizer = tfidf_vectorizer(vocabulary=router.vocabulary)
    vectorizer.idf_ = router.idf

    def by_threads(threads: int) -> float:
        nearest_by_threads(router, windows, threads=threads)
        return float(windows.size)

    def by_scikit_learn() -> float:
        similarities(router.embed_features(csr_matrix(vectorizer.transform(decoded(texts)))), router.centroids)
        return float(len(texts) * WINDOW_BYTES)

    def routed_together() -> float:
        router.route(prefixes, active_experts=active)
        return float(len(prefixes))

    def routed_alone() -> float:
        for prefix in prefixes[:ROUTED_ALONE]:
            router.route([prefix], active_experts=active)
        return float(len(prefixes[:ROUTED_ALONE]))

    def similarity() -> float:
        similarities(points, router.centroids)
        return 2.0 * points.size * router.num_clusters

    contestants: dict[str, Callable[[], float]] = {
        "one core": lambda: by_threads(1),
        "scikit-learn": by_scikit_learn,
        "two cores": lambda: by_threads(2),
        "routed together": routed_together,
        "routed alone": routed_alone,
        "similarity": similarity,
        "peak loop": run_peak_loop,
        "matrix product": run_matrix_product,
    }
    for warm in (routed_together, run_peak_loop, run_matrix_product):
        warm()
    timed = timed_in_turn(contestants, repeats=repeats)
    one, two, slow = timed["one core"], timed["two cores"], timed["scikit-learn"]
    peak = max(timed["peak loop"], timed["matrix product"])
    return {
        "assign_bytes_per_s": two.median,
        "assign_spread": two.spread,
        "one_core_assign_bytes_per_s": one.median,
        "one_core_spread": one.spread,
        "second_core_gain": two.median / one.median,
        "scikit_learn_bytes_per_s": slow.median,
        "scikit_learn_spread": slow.spread,
        "speedup_over_scikit_learn": one.median / slow.median,
        "route_seconds_per_prefix": 1 / timed["routed together"].median,
        "route_spread": timed["routed together"].spread,
        "route_alone_seconds_per_prefix": 1 / timed["routed alone"].median,
        "route_alone_spread": timed["routed alone"].spread,
        "similarity_flops_per_s": timed["similarity"].median,
        "fma_peak_flops_per_s": peak.median,
        "similarity_fraction_of_fma_peak": timed["similarity"].median / peak.median,
        "repeats": repeats,
    }


def peak_memory_bytes() -> int:
    """The most this process held; Linux's own figure where there is one, as ``getrusage`` may count its parent's."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measured_apart(arguments: argparse.Namespace) -> dict[str, Any]:
    """``measure`` in a fresh process."""
    options = [f"--{name}={getattr(arguments, name)}" for name in ("windows", "clusters", "repeats")]
    options += [f"--data={arguments.data}"] if arguments.data else []
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", *options]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        what = f"the measuring process failed with status {ended.returncode}; what it said stands above"
        raise UserError(what, where="bench/clustering.py", fix="give fewer windows or other text")
    row: dict[str, Any] = json.loads(ended.stdout)
    return row


def as_text(row: Mapping[str, Any]) -> str:
    """For a person: stages in seconds, rates in MB/s, spreads of the rounds in brackets."""
    stages = [key for key in row if key.startswith("seconds_") and key != "seconds_fit"]
    smallest, largest = row["smallest_cluster_over_mean"], row["largest_cluster_over_mean"]
    fraction = row["similarity_fraction_of_fma_peak"]
    table = (
        ("whole pipeline", row["seconds"], f"s, at most {row['peak_memory_bytes'] / 1e9:.2f} GB"),
        *((f"  {key.removeprefix('seconds_').replace('_', ' ')}", row[key], "s") for key in stages),
        ("assigned, two threads", row["assign_bytes_per_s"] / 1e6, f"MB/s  [{row['assign_spread']:.0%}]"),
        ("assigned, one thread", row["one_core_assign_bytes_per_s"] / 1e6, f"MB/s  [{row['one_core_spread']:.0%}]"),
        ("scikit-learn", row["scikit_learn_bytes_per_s"] / 1e6, f"MB/s  [{row['scikit_learn_spread']:.0%}]"),
        ("second core", row["second_core_gain"], "x"),
        ("routed in a batch", row["route_seconds_per_prefix"] * 1e6, f"us a prefix  [{row['route_spread']:.0%}]"),
        ("routed alone", row["route_alone_seconds_per_prefix"] * 1e6, f"us  [{row['route_alone_spread']:.0%}]"),
        ("similarity", row["similarity_flops_per_s"] / 1e9, f"GFLOP/s, {fraction:.0%} of one core's peak"),
        ("largest cluster", largest, f"of the mean, by nearest centroid; smallest {smallest:.2f}"),
    )
    lines = (f"  {name:<24}{value:10.2f} {unit}" for name, value, unit in table)
    return "\n".join((f"{row['case']}: {row['terms']} terms (speeds: median of {row['repeats']})", *lines))


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("bench/clustering.py", "Clustering and routing, checked first.")
    parser.add_argument("--windows", type=int, default=400_000, help="windows to divide (default 400000)")
    parser.add_argument("--clusters", type=int, default=256, help="parts to divide them into (default 256)")
    parser.add_argument("--data", type=Path, help="a prepared folder; without it the text is made up")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parsed(parser, argv)
    if arguments.clusters < 2 or arguments.windows < 32 * arguments.clusters:
        parser.error("--clusters must be at least 2, and --windows at least 32 a cluster")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 where a check fails."""
    arguments = arguments_of(argv)
    if arguments.measure:
        row = measure(
            arguments.data,
            num_windows=arguments.windows,
            num_clusters=arguments.clusters,
            repeats=arguments.repeats,
        )
        print(json.dumps(row))
        return 0
    try:
        few = read_text(arguments.data, count=min(CHECKED_WINDOWS, arguments.windows))
        wrong = failures(few, num_clusters=arguments.clusters)
        if wrong:
            print("the clustering is wrong, so its speed means nothing:", *wrong, sep="\n  ", file=sys.stderr)
            return 1
        row = measured_apart(arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    publish([row], arguments=arguments, bench="clustering", as_text=as_text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
