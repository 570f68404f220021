"""Do the CSV files hold every number once, tidy, with units in the names?"""

import csv
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from thinwire.report.collect import collect_runs
from thinwire.report.tables import write_tables

MakeRun = Callable[..., Path]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def test_tables_of_a_finished_run(make_run: MakeRun, tmp_path: Path) -> None:
    runs = collect_runs([make_run(num_experts=3)])
    curves, results, clusters, matrix = map(rows_of, write_tables(runs, folder=tmp_path / "tables"))
    assert len(curves) == (100 + 11) + 3 * (200 + 21)
    last = curves[-1]
    assert (last["job"], last["expert"], last["split"], last["update"]) == ("expert", "2", "valid", "2000")
    assert float(last["loss_nats_per_byte"]) == runs[0].experts[2].validation[-1].loss_nats_per_byte
    whole = [row for row in results if row["evaluation"] == "test" and row["source"] == "all"]
    assert [row["system"] for row in whole] == [
        "ensemble",
        "seed",
        "expert 0",
        "expert 1",
        "expert 2",
        "byte_unigram",
        "byte_bigram",
        "xz",
    ]
    ensemble = whole[0]
    assert float(ensemble["bits_per_byte"]) * math.log(2) == pytest.approx(2.204, abs=1e-9)
    assert float(ensemble["ci95_low_nats_per_byte"]) < 2.204 < float(ensemble["ci95_high_nats_per_byte"])
    assert {row["source"] for row in results} == {"all", "law", "medicine", "novels"}
    assert sum(float(row["fraction_of_train_windows"]) for row in clusters) == pytest.approx(1.0, abs=1e-12)
    assert len(matrix) == 9
    assert sum(int(row["is_own_cluster"]) for row in matrix) == 3
    for cluster in range(3):
        column = [row for row in matrix if row["cluster"] == str(cluster)]
        best = [row for row in column if row["is_best_on_cluster"] == "1"]
        assert len(best) == 1
        assert float(best[0]["loss_nats_per_byte"]) == min(float(row["loss_nats_per_byte"]) for row in column)


def test_tables_without_rows_keep_their_header(make_run: MakeRun, tmp_path: Path) -> None:
    paths = write_tables(collect_runs([make_run(parts=())]), folder=tmp_path / "tables")
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("run,")


def test_no_cell_is_a_formula(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("=run", num_experts=1, terms=(("=cmd()", "b"),))
    paths = write_tables(collect_runs([folder]), folder=tmp_path / "tables")
    assert rows_of(paths[2])[0]["top_terms"] == "'=cmd(); b"
    assert rows_of(paths[2])[0]["run"] == "'=run"
