"""``thinwire measure traffic RUN`` of a SOMA run: bytes that ranks of one expert sent, beside the formula."""

from pathlib import Path
from typing import Any

from thinwire.base.units import format_bytes
from thinwire.cli.terminal import print_columns, print_table
from thinwire.soma.exchanged_bytes import Exchanged, exchanged_by_job
from thinwire.soma.run import SomaRun, job_label


def measure_exchange(root: Path) -> dict[str, Any]:
    """Plain values; bytes are those of all ranks together.

    Raises:
        UserError: this is no SOMA run.
    """
    config, jobs = SomaRun.open(root).config, exchanged_by_job(root)
    return {
        "method": "soma",
        "exchange": config.exchange,
        "counted_bytes": sum(sum(job.counted) for job in jobs),
        "closed_form_bytes": sum(sum(job.expected) for job in jobs),
        "is_equal": all(job.is_equal for job in jobs),
        "jobs": [_as_record(job) for job in jobs],
    }


def _as_record(job: Exchanged) -> dict[str, Any]:
    record = job._asdict() | {"counted": job.counted._asdict(), "expected": job.expected._asdict()}
    return record | {"is_equal": job.is_equal}


def print_exchange(record: dict[str, Any]) -> None:
    jobs = [job for job in record["jobs"] if job["ranks"]]
    if not jobs:
        print_table([("sent", "nothing: every job was trained by one process, and jobs never talk to each other")])
        return
    print_table([("exchange", record["exchange"])])
    print_columns(
        ["job", "ranks", "updates", "losses", "gradients", "closed form", "", "handed out"],
        [
            [
                job_label(job["job"]),
                ", ".join(map(str, job["ranks"])),
                f"{job['updates']:,}",
                format_bytes(job["counted"]["losses"]),
                format_bytes(job["counted"]["gradient"]),
                f"{sum(job['expected'].values()):,}",
                "equal" if job["is_equal"] else "DIFFERS",
                format_bytes(job["handed_bytes"]),
            ]
            for job in jobs
        ],
    )
    print_table(
        [
            ("handed out", "first weights, windows and state, once a start; in no closed form"),
            ("not known", "what was sent after the last validation of a start that was broken off"),
        ]
    )
