"""Does ``thinwire reproduce --scale smoke`` run every SOMA item, say what it found, and go on after a kill?"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from command_lines import PROGRAM

KEYS = {"item", "scale", "state", "verdict", "ours", "paper", "rule"}
VERDICTS = {"agrees", "differs", "scale too small to tell"}


def listed(out: Path) -> list[dict[str, object]]:
    command = [*PROGRAM, "reproduce", "--list", "--scale", "smoke", "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


@pytest.mark.slow
def test_every_item_at_smoke_scale_killed_once(tmp_path: Path) -> None:
    out = tmp_path / "smoke"
    command = [*PROGRAM, "reproduce", "--scale", "smoke", "--out", str(out)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while first.poll() is None and sum(1 for _ in out.glob("*/outcome.json")) < 2:
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/parts/*.json")}
    assert before
    assert {"missing", "done"} <= {str(item["state"]) for item in listed(out)}
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    items = listed(out)
    assert all(set(item) >= KEYS for item in items)
    assert {item["state"] for item in items} == {"done"}
    assert {item["verdict"] for item in items} <= VERDICTS
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    for item in items:
        folder = out / str(item["item"])
        assert (folder / "rows.csv").read_text().count("\n") >= 2
        outcome = json.loads((folder / "outcome.json").read_text())
        assert outcome["ours"] == item["ours"]
        assert (folder / "figure.png").is_file() == outcome["has_figure"]
