"""Is cached machine code dropped when any source of the kernels changes?"""

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

double(3)
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


def test_another_digest_compiles_anew(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(MODULE)

    def hits_and_misses(digest: str) -> tuple[int, int]:
        done = subprocess.run([sys.executable, module, digest], capture_output=True, text=True, check=True)
        hits, misses = done.stdout.split()
        return int(hits), int(misses)

    assert hits_and_misses("one") == (0, 1)
    assert hits_and_misses("one") == (1, 0)
    assert hits_and_misses("two") == (0, 1)
