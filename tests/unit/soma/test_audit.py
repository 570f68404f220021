"""Does an audit pass an honest log bit for bit, and name the update whose losses are not its weights'?"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_lines import Here, assert_refused
from thinwire.base.errors import UserError
from thinwire.runs.layout import JobFolder
from thinwire.soma.audit import audit
from thinwire.soma.compute import Compute
from thinwire.soma.scalar_log import Record, ScalarLog, UpdateRecord, read
from tiny_runs import CONFIG, JOB, copy_of, start_run, train_in_process

EVERY = 3 * JOB.updates
"""Of the seed run and two experts."""


def rewrite(folder: JobFolder, records: list[Record]) -> None:
    """A log with other records, whole and with right checksums."""
    header = {key: value for key, value in read(folder.scalars).header.items() if key != "format"}
    folder.scalars.unlink()
    log = ScalarLog(folder.scalars, good_bytes=0, header=header)
    for record in records:
        log.append(record)
    log.close()


def with_other_losses(run: Path, *, expert: str, update: int, by: float) -> JobFolder:
    """A run whose log says another loss difference for one direction of one update."""
    folder, records = JobFolder(run / "experts" / expert), []
    for record in read(folder.scalars).records:
        if isinstance(record, UpdateRecord) and record.update == update:
            differences = np.array(record.differences)
            differences[0, 1] += by
            record = record._replace(differences=differences)
        records.append(record)
    rewrite(folder, records)
    return folder


def test_every_update_of_an_honest_run_is_equal_on_any_number_of_threads(tiny_run: Path) -> None:
    for threads in (1, 2):
        found = audit(tiny_run, updates=1000, compute=Compute("auto", threads))
        assert len(found) == EVERY
        assert all(one.is_equal and one.agrees for one in found)
        assert [(one.job, one.update) for one in found[:7]] == [*(("seed", u) for u in range(1, 7)), ("0", 1)]


def test_another_implementation_agrees_within_rounding(tiny_run: Path) -> None:
    found = audit(tiny_run, updates=1000, compute=Compute("reference"))
    assert all(one.agrees for one in found)
    assert not all(one.is_equal for one in found)


def test_an_update_that_was_made_up_is_named(tiny_run: Path, tmp_path: Path) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    with_other_losses(root, expert="001", update=JOB.updates, by=1e-3)
    found = audit(root, updates=1000)
    assert [(one.job, one.update) for one in found if not one.agrees] == [("1", JOB.updates)]
    assert found[-1].largest_difference == pytest.approx(1e-3, rel=1e-6)


def test_what_follows_an_update_that_was_made_up_differs_too(tiny_run: Path, tmp_path: Path) -> None:
    """Its weights are those of the log, the losses after it were not made with them."""
    root = copy_of(tiny_run, tmp_path / "run")
    with_other_losses(root, expert="000", update=2, by=0.1)
    differing = {(one.job, one.update) for one in audit(root, updates=1000) if not one.agrees}
    assert ("0", 2) in differing
    assert ("0", JOB.updates) in differing
    assert {job for job, _ in differing} == {"0"}


def test_updates_are_drawn_without_replacement_by_the_seed(tiny_run: Path) -> None:
    draws = [[(one.job, one.update) for one in audit(tiny_run, updates=5, seed=seed)] for seed in (0, 0, 1)]
    assert len(set(draws[0])) == 5
    assert draws[0] == draws[1] != draws[2]


def test_command(here: Here, tiny_run: Path, tmp_path: Path) -> None:
    done = here("audit", tiny_run, "--updates", "4", "--json")
    assert done.status == 0, done.err
    record = json.loads(done.out)
    assert record["updates"] == record["agree"] == len(record["audited"]) == 4
    assert here("audit", tiny_run, "--updates", "4").out.count(b"equal") == 4
    root = copy_of(tiny_run, tmp_path / "run")
    with_other_losses(root, expert="001", update=JOB.updates, by=1e-3)
    failed = here("audit", root, "--updates", "1000")
    assert failed.status == 1
    assert b"DIFFERS" in failed.out
    assert f"1 of {EVERY} updates are not what the log says" in failed.err


def test_what_cannot_be_audited_is_said(here: Here, tiny_run: Path, tiny_data: Path, tmp_path: Path) -> None:
    assert_refused(here("audit", tmp_path / "none"), "not a run folder")
    assert_refused(here("audit", tiny_run, "--updates", "0"), "0 updates cannot be checked")
    start_run(CONFIG, data=tiny_data, out=tmp_path / "new")
    with pytest.raises(UserError, match="no updates yet"):
        audit(tmp_path / "new", updates=1)
    start_run(replace(CONFIG, losses="summed"), data=tiny_data, out=tmp_path / "summed")
    with pytest.raises(UserError, match="cannot be audited one by one"):
        audit(tmp_path / "summed", updates=1)


def test_backpropagated_updates_are_audited_by_their_loss(tiny_data: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, experts=replace(JOB, estimator="bptt", learning_rate=1e-2))
    train_in_process(config, data=tiny_data, out=tmp_path / "run")
    assert all(one.agrees for one in audit(tmp_path / "run", updates=1000))
