"""Does the demo's table tell what keys, values and weights cost on a thin wire?"""

from dataclasses import replace
from pathlib import Path

import pytest

import tiny_subspaces
from counted_runs import counted_run
from thinwire.base.files import write_json
from thinwire.cli.demo import _print_side_by_side
from thinwire.subspaces.config import CodecConfig, SyncConfig

CONFIG = replace(
    tiny_subspaces.CONFIG,
    launch=replace(tiny_subspaces.CONFIG.launch, ranks=2),
    sync=SyncConfig(every=4),
    checkpoint_every=4,
)


def test_weights_have_their_own_bytes_and_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = {"plain": replace(CONFIG, codec=CodecConfig(kind="plain")), "compressed": CONFIG}
    runs = {name: counted_run(tmp_path / name, config, steps=6) for name, config in configs.items()}
    for run in runs.values():
        write_json(run / "results" / "test.json", {"loss_nats_per_token": 2.5})
    _print_side_by_side(runs)
    lines = capsys.readouterr().out.strip("\n").split("\n")
    assert len({len(line) for line in lines}) == 1
    cells = {line[2:31].strip(): line[31:].split() for line in lines}
    # 256 x 24, 2 blocks of 24 x (2 x 32 + 2 x 16 + 3 x 40 + 2), 24: 16,632 weights of 4 bytes; compressed also
    # 2 x 17 of theta's heads a block. Two ranks send as many as there are, once in 4 updates.
    assert cells["weights an update, on average"] == ["33.3", "kB", "33.4", "kB"]
    plain, _, compressed, _ = cells["K/V counted an update"]
    assert float(plain) > float(compressed) > 0
    # half of 33.3 kB a rank, 8 bits a byte, 10 Mbit/s: 13 ms
    assert cells["weights at 10 Mbit/s"] == ["0.01", "s", "0.01", "s"]
    assert {"of plain", "K/V at 10 Mbit/s"} <= set(cells)
