"""Does a disk that is read-only or full lose nothing, and does the same command go on once there is room?"""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tiny_runs
from command_lines import Here, assert_refused, contents
from thinwire.soma.byte_counts import save_array
from tiny_runs import CONFIG, assert_same_runs, copy_of, flags


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system of its own; needs root."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk-{len(mounted)}"
        folder.mkdir()
        argv = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(argv, capture_output=True, check=False).returncode != 0:
            pytest.skip("needs root, and a kernel that lets it mount a file system")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_read_only_run_is_read_but_not_trained(
    here: Here, disk: Callable[[str], Path], tiny_run: Path, tiny_data: Path, tmp_path: Path
) -> None:
    folder = disk("size=8m")
    run = copy_of(tiny_run, folder / "run")
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    refused = here("train", "demo", *flags(CONFIG), "--data", tiny_data, "--out", run)
    assert_refused(refused, "the file system is read-only")
    scored = here("evaluate", run)
    assert scored.status == 0, scored.err
    assert b"nats/byte" in scored.out
    assert "the result is not kept" in scored.err
    written = here("generate", run, "--bytes", "5")
    assert written.status == 0, written.err
    assert "the sample is not kept" in written.err
    for argv in (
        ["prepare", tmp_path, "--out", folder / "data"],
        ["replay", run, "--to", "6", "--out", folder / "replayed"],
        ["report", run, "--out", folder / "page"],
    ):
        outcome = here(*argv)
        assert_refused(outcome, "ead-only")
    assert contents(run) == contents(tiny_run)


def test_an_array_that_does_not_fit_is_an_error_with_its_place(disk: Callable[[str], Path]) -> None:
    path = disk("size=64k") / "array.npy"
    with pytest.raises(OSError, match="No space left") as full:
        save_array(path, np.zeros(20_000))
    assert (full.value.errno, full.value.filename) == (errno.ENOSPC, str(path))
    assert list(path.parent.iterdir()) == []


def test_a_disk_that_fills_while_text_is_prepared_keeps_nothing(
    here: Here, disk: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = disk("size=256k")
    texts = tiny_runs.write_texts(tmp_path / "texts", words=1000)
    assert_refused(here("prepare", texts, "--out", folder / "data"), "the disk is full")
    assert list(folder.iterdir()) == []
    assert here("prepare", texts, "--out", tmp_path / "data").status == 0


def test_a_disk_that_fills_while_experts_train_loses_nothing(
    apart: Here, disk: Callable[[str], Path], tiny_run: Path, tiny_data: Path
) -> None:
    folder = disk("size=2m")
    run = copy_of(tiny_run, folder / "run", without=("experts", "results"))
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(free - 180_000))
    argv = ["train", "demo", *flags(CONFIG), "--data", tiny_data, "--out", run]
    full = apart(*argv)
    assert_refused(full, "the disk is full")
    assert f"where: {run}" in full.err
    ballast.unlink()
    again = apart(*argv)
    assert again.status == 0, again.err
    assert_same_runs(run, tiny_run, data=tiny_data)
