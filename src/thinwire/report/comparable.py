"""May these runs be compared?  Only where the same bytes were scored: losses of other windows or texts say nothing.

Two scores of the same windows have equal digests. Where that is not known, or a run is not scored yet, the data and
the settings that cut the test windows decide. Windows are drawn by the run's seed, so runs of several seeds score
other windows of the same documents: those compare, and the page says so.
"""

from collections.abc import Sequence
from typing import Any

from thinwire.base.errors import UserError
from thinwire.config.fingerprint import flatten
from thinwire.report.records import Run

PREFIX = "routing.prefix_bytes"
CUTS = {
    "scoring.window_bytes": "bytes of a scored window",
    PREFIX: "bytes of it that are not scored",
    "scoring.max_windows": "windows at most",
}


def require_comparable(runs: Sequence[Run]) -> None:
    """Raises UserError, naming what differs, where two runs were or will be scored on different windows or texts."""
    for other in runs[1:]:
        differing = differences(runs[0], other)
        if differing:
            raise UserError(
                f"the test losses of '{runs[0].name}' and '{other.name}' do not compare: {'; '.join(differing)}",
                where=f"{runs[0].folder} and {other.folder}",
                fix="make a report of each alone, or train both on the same data with the same scoring",
            )


def differences(one: Run, other: Run) -> list[str]:
    """What parts the scored windows of two runs; nothing where they are known to be the same."""
    digests, data = [_digest(run) for run in (one, other)], [_data(run) for run in (one, other)]
    settings = [flatten(run.config) for run in (one, other)]
    has_digests = None not in digests
    found = []
    if None not in data and data[0] != data[1]:
        found.append(f"the text (data {data[0][:12]} and {data[1][:12]})")  # type: ignore[index]
    cuts = {key: [_setting(flat, key) for flat in settings] for key in CUTS}
    found += [f"{CUTS[key]} ({key} {a:,} and {b:,})" for key, (a, b) in cuts.items() if None not in (a, b) and a != b]
    if has_digests and digests[0] == digests[1]:  # the same windows, wherever they lay; the scored part may differ
        return [words for words in found if PREFIX in words]
    if has_digests and not found and settings[0].get("seed") == settings[1].get("seed"):
        found.append(f"the scored windows themselves (digests {digests[0]} and {digests[1]})")
    return found


def same_windows(runs: Sequence[Run]) -> bool:
    """Whether every score is known to be of the same windows, so that differences are free of the windows' choice."""
    digests = {_digest(run) for run in runs if run.headline is not None}
    return len(digests) <= 1


def _setting(flat: dict[str, Any], key: str) -> Any:
    """A run of one model has no section ``routing``."""
    return flat.get(key, flat.get(key.partition(".")[2]))


def _digest(run: Run) -> str | None:
    """Of the windows of the run's own test."""
    return None if run.headline is None or run.headline.name != "test" else run.headline.windows_digest


def _data(run: Run) -> str | None:
    record = run.manifest.get("data")
    fingerprint = record.get("fingerprint") if isinstance(record, dict) else None
    return fingerprint if isinstance(fingerprint, str) else None
