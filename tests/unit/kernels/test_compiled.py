"""Is cached machine code dropped when any source of the kernels changes, and is a cache that fails no error?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from thinwire.kernels import compiled
from thinwire.kernels.lane_forward import forward_lanes

MODULE = """
import sys
from thinwire.kernels import compiled

compiled.sources_digest = lambda: sys.argv[1]

@compiled.compiled
def double(x):
    return 2 * x

@compiled.compiled
def triple(x):
    return 3 * x

assert (double(3), triple(3)) == (6, 9)
print(sum(double.stats.cache_hits.values()), sum(double.stats.cache_misses.values()))
"""


def test_kernels_carry_the_digest_of_all_sources() -> None:
    assert forward_lanes._cache._cache_file._source_stamp == compiled.sources_digest()


def test_the_digest_covers_every_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "compiled.py").write_text("a = 1\n")
    (tmp_path / "inner" / "other.py").write_text("b = 1\n")
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    first = compiled.sources_digest.__wrapped__()
    (tmp_path / "inner" / "other.py").write_text("b = 2\n")
    assert compiled.sources_digest.__wrapped__() != first


def run(folder: Path, digest: str = "one", **environment: str) -> subprocess.CompletedProcess[str]:
    module = folder / "module.py"
    module.write_text(MODULE)
    os.utime(module, (1, 1))
    command = [sys.executable, str(module), digest]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)


def test_another_digest_compiles_anew(tmp_path: Path) -> None:
    assert [run(tmp_path, digest).stdout for digest in ("one", "one", "two")] == ["0 1\n", "1 0\n", "0 1\n"]


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [0, 40])
def test_a_damaged_cache_is_made_anew_and_said_once(tmp_path: Path, kind: str, left: int) -> None:
    sound = run(tmp_path)
    damaged = list((tmp_path / "__pycache__").glob(f"*.{kind}"))
    assert len(damaged) == 2
    for path in damaged:
        path.write_bytes(path.read_bytes()[:left])
    repaired, after = run(tmp_path), run(tmp_path)
    assert (sound.stdout, repaired.stdout, after.stdout) == ("0 1\n", "0 1\n", "1 0\n")
    assert repaired.stderr.count("Warning") == 1
    assert "are compiled anew" in repaired.stderr
    assert sound.stderr == after.stderr == ""


def test_without_a_folder_to_write_kernels_run_and_it_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").write_text("a file where the folder should be")
    done = run(tmp_path, XDG_CACHE_HOME="/dev/null", NUMBA_CACHE_DIR="/dev/null/cache")
    assert done.stdout == "0 1\n"
    assert done.stderr.count("Warning") == 1
    assert "no folder for compiled kernels can be written" in done.stderr


def test_a_full_disk_costs_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    compiled._say_once.cache_clear()

    @compiled.compiled
    def negated(x):  # type: ignore[no-untyped-def]
        return -x

    monkeypatch.setattr(type(negated._cache._cache_file), "save", full)
    with pytest.warns(UserWarning, match="cannot be written to disk"):
        assert negated(3) == -3
