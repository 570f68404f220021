"""Does the clustering benchmark check first, and hold what the contract asks: time, memory, speed, routing?"""

import csv
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from thinwire.base.errors import UserError

KEYS = {
    "case",
    "implementation",
    "seconds",
    "seconds_count_words",
    "seconds_singular_vectors",
    "seconds_clusters",
    "seconds_assign_windows",
    "peak_memory_bytes",
    "assign_bytes_per_s",
    "one_core_assign_bytes_per_s",
    "scikit_learn_bytes_per_s",
    "route_seconds_per_prefix",
    "route_alone_seconds_per_prefix",
    "similarity_fraction_of_fma_peak",
}
SMALL = ["--windows", "300", "--clusters", "4", "--repeats", "1"]


@pytest.fixture
def bench(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository / "bench")
    for name in ("peak", "measuring", "clustering_text", "clustering_checks", "clustering"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("clustering")
    text = importlib.import_module("clustering_text")
    monkeypatch.setattr(text, "NUM_WORDS", 2000)
    peak = importlib.import_module("thinwire.kernels.peak")
    monkeypatch.setattr(peak, "PEAK_ROUNDS", 1000)
    monkeypatch.setattr(peak, "MATRIX_SIZE", 64)
    monkeypatch.setattr(module, "truly_measured_apart", module.measured_apart, raising=False)
    monkeypatch.setattr(
        module,
        "measured_apart",
        lambda given: module.measure(
            given.data, num_windows=given.windows, num_clusters=given.clusters, repeats=given.repeats
        ),
    )
    return module


def test_a_row_has_time_memory_and_speeds_that_agree(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([*SMALL, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert set(row) >= KEYS
    assert row["windows"] == 300
    stages = [row[key] for key in row if key.startswith("seconds_") and key != "seconds_fit"]
    assert sum(stages) <= row["seconds"]
    assert row["second_core_gain"] == pytest.approx(row["assign_bytes_per_s"] / row["one_core_assign_bytes_per_s"])
    assert row["peak_memory_bytes"] >= row["text_memory_bytes"] > 300 * 1024


def test_the_row_is_measured_by_a_fresh_process_with_the_same_settings(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = bench.arguments_of([*SMALL, "--data", str(tmp_path)])
    interpreter = tmp_path / "python"
    interpreter.write_text('#!/bin/sh\nshift\nprintf \'{"options": "%s"}\' "$*"\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    options = f"--measure --windows=300 --clusters=4 --repeats=1 --data={tmp_path}"
    assert bench.truly_measured_apart(given) == {"options": options}
    interpreter.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(UserError, match="measuring process failed"):
        bench.truly_measured_apart(given)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_no_speed_is_printed_where_word_counts_are_wrong(
    flags: list[str], bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = sys.modules["clustering_checks"]
    true_rows = checks.compiled_rows

    def slightly_wrong(texts: list[bytes], **rest: object) -> csr_matrix:
        rows = true_rows(texts, **rest)
        rows.data[-1] = np.nextafter(rows.data[-1], np.float32(2))
        return rows

    monkeypatch.setattr(checks, "compiled_rows", slightly_wrong)
    assert bench.main([*SMALL, *flags]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "tf-idf values differ" in shown.err


def test_threads_that_disagree_are_told(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = sys.modules["clustering_checks"]
    answers = iter((np.zeros(300, np.int32), np.ones(300, np.int32)))
    monkeypatch.setattr(checks, "nearest_by_threads", lambda *_, **__: next(answers))
    assert bench.main(SMALL) == 1
    assert "two threads assign otherwise" in capsys.readouterr().err


@pytest.mark.usefixtures("bench")
def test_a_prepared_folder_gives_the_text_and_more_than_it_has(tiny_data: Path) -> None:
    text = sys.modules["clustering_text"]
    few = text.windows_of_corpus(tiny_data, count=4)
    many = text.windows_of_corpus(tiny_data, count=30)
    assert few.shape == (4, 1024)
    np.testing.assert_array_equal(many[:4], few)
    assert len(np.unique(many, axis=0)) == 30
    np.testing.assert_array_equal(text.windows_drawn(count=50), text.windows_drawn(count=50))


@pytest.mark.parametrize("wrong", [["--repeats", "0"], ["--windows", "100"], ["--clusters", "1"]])
def test_settings_that_cannot_be_measured_are_refused(wrong: list[str], bench: ModuleType) -> None:
    with pytest.raises(SystemExit) as caught:
        bench.main(wrong)
    assert caught.value.code == 2


def test_a_missing_folder_is_one_sentence(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([*SMALL, "--data", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.usefixtures("bench")
def test_too_little_text_is_said(tiny_data: Path) -> None:
    text = sys.modules["clustering_text"]
    with pytest.raises(UserError, match="too few to make 1000000 different ones"):
        text.windows_of_corpus(tiny_data, count=10**6)


def test_a_recorded_row_names_the_bench(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring = sys.modules["measuring"]
    monkeypatch.setattr(measuring, "RESULTS", tmp_path)
    assert bench.main([*SMALL, "--record"]) == 0
    assert "whole pipeline" in capsys.readouterr().out
    (path,) = tmp_path.iterdir()
    lines = list(csv.DictReader(path.open()))
    assert {line["bench"] for line in lines} == {"clustering"}
    assert {line["case"] for line in lines} == {"300 windows, N=4, made-up text"}
