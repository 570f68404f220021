"""Do the benchmarks of a whole update and of EGGROLL add up, and refuse to print where a kernel is wrong?"""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from thinwire.kernels.eggroll.cases import CASES as EGGROLL_CASES


def loaded(name: str, *, repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench/NAME.py, its peaks made tiny."""
    monkeypatch.syspath_prepend(repository / "bench")
    for other in ("peak", "measuring", "kernels", name):
        monkeypatch.delitem(sys.modules, other, raising=False)
    module = importlib.import_module(name)
    peak = importlib.import_module("thinwire.kernels.peak")
    monkeypatch.setattr(peak, "PEAK_ROUNDS", 1000)
    monkeypatch.setattr(peak, "MATRIX_SIZE", 64)
    return module


@pytest.fixture
def training(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = loaded("training", repository=repository, monkeypatch=monkeypatch)
    monkeypatch.setattr(module.kernels, "CASES", module.kernels.CASES[:2])
    monkeypatch.setattr(module, "WINDOW_BYTES", 32)
    monkeypatch.setattr(module, "CORPUS_WINDOWS", 16)
    monkeypatch.setattr(module, "CASES", (module.UpdateCase("tiny", 4, 2, "central"),))
    answers = {"memory": {"peak_bytes": 1e6}, "compile": {"seconds": 1.0}}
    monkeypatch.setattr(module, "in_fresh_process", lambda what, *_, **__: answers[what])
    return module


@pytest.fixture
def eggroll(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = loaded("eggroll", repository=repository, monkeypatch=monkeypatch)
    monkeypatch.setattr(module, "CASES", EGGROLL_CASES[:2])
    monkeypatch.setattr(module, "INPUT_BYTES", 2)
    monkeypatch.setattr(module, "OPERATIONS_A_ROUND", 1.0)
    return module


def test_shares_of_an_update_add_up(training: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert training.main(["--json", "--repeats", "1"]) == 0
    update, memory, compilation = json.loads(capsys.readouterr().out)
    assert update["losses_share"] == pytest.approx(update["losses_seconds"] / update["whole_update_seconds"])
    assert 0 < update["losses_share"] < 1
    probes = update["probe_seconds"] + update["sum_seconds"]
    assert update["probe_and_sum_share"] == pytest.approx(probes / update["whole_update_seconds"])
    forwards = 4 * 2 * 2 * 32
    assert update["byte_forwards_per_s"] == pytest.approx(forwards / update["whole_update_seconds"])
    assert memory["growth_bytes"] == 0
    assert compilation["cold_seconds"] == compilation["warm_seconds"] == 1.0


def test_no_time_is_printed_for_wrong_probes(
    training: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = training.sign_probe
    monkeypatch.setattr(
        training,
        "sign_probe",
        lambda *a, implementation="numba", **k: right(*a, **k) * (-1) ** (implementation == "numba"),
    )
    assert training.main(["--json"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "first address" in shown.err


def test_a_fresh_process_reports_its_own_peak(repository: Path) -> None:
    """200 MB in the parent must not show in a child that is given 50 MB more than nothing."""
    held = bytearray(b"x") * 200_000_000
    script = (
        f"import sys; sys.path.insert(0, {str(repository / 'bench')!r}); import re; from pathlib import Path;"
        "source = Path(sys.path[0], 'training.py').read_text();"
        "part = source[source.index('def peak_bytes'):source.index('def child(')];"
        "exec(part); more = bytearray(b'x') * 50_000_000; print(peak_bytes())"
    )
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert 50e6 < float(found) < 120e6 < len(held)


def test_eggrolls_row_sets_perturbed_beside_plain(eggroll: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert eggroll.main(["--json", "--repeats", "1", "--widths", "5"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["case"] == "d=5"
    expected = row["perturbed_byte_forwards_per_s"] / row["plain_byte_forwards_per_s"]
    assert row["fraction_of_plain"] == pytest.approx(expected)
    assert 0 < row["update_share"] < 1


def test_no_speed_is_printed_for_a_wrong_forward(
    eggroll: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = eggroll.case_losses
    monkeypatch.setattr(eggroll, "case_losses", lambda case, *, threads: right(case, threads=threads) * (1 + 2e-5))
    assert eggroll.main(["--json"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "one pair, one byte" in shown.err


@pytest.mark.parametrize("widths", ["abc", "0", "-5", "5,", "4.5"])
def test_widths_that_are_none_end_with_status_2(
    eggroll: ModuleType, widths: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        eggroll.main([f"--widths={widths}"])
    assert caught.value.code == 2
    assert "widths are whole numbers of at least 1" in capsys.readouterr().err
