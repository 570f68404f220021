"""What do tests of counted bytes read?  A run folder whose log has just the bytes that the closed form says."""

import json
from pathlib import Path

from thinwire.base.files import write_json
from thinwire.config.fingerprint import as_record
from thinwire.subspaces.config import SubspacesConfig
from thinwire.subspaces.schedule import phase_of
from thinwire.subspaces.traffic import step_traffic


def counted_run(folder: Path, config: SubspacesConfig, *, steps: int) -> Path:
    """The log of some updates of all ranks, without any validation."""
    folder.mkdir()
    write_json(folder / "config.json", {"kind": "subspaces", "preset": "tiny", "config": as_record(config)})
    counts = {"kv-forward": 0, "kv-backward": 0, "theta": 0, "sync": 0, "control": 7}
    with (folder / "log.jsonl").open("w") as log:
        for step in range(1, steps + 1):
            phase = phase_of(step, config)
            for tag, count in step_traffic(config, vocab_size=256, phase=phase).by_tag().items():
                counts[tag] += count
            record = {"kind": "step", "step": step, "phase": phase, "ranks": config.launch.ranks, "wire_bytes": counts}
            log.write(json.dumps(record) + "\n")
    return folder
