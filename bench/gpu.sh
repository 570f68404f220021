#!/usr/bin/env bash
# The whole measurement on one GPU machine, in under eight minutes: correctness first, then the table.
#   bash bench/gpu.sh [--json] [--record]
# A machine may start bare: its own python3 is taken where torch with CUDA and triton can be imported, else a virtual
# environment is made from the package index.  The rows are left in $OUT/gpu.json where that is set.
set -euo pipefail
cd "$(dirname "$0")/.."

usable() {
    "$1" - <<'PYTHON'
import importlib, sys
missing = []
for name in ("torch", "triton", "numpy", "numba", "jaxtyping"):
    try:
        importlib.import_module(name)
    except ImportError:
        missing.append(name)
if not missing:
    import torch
    if not torch.cuda.is_available():
        missing.append("a CUDA device that torch can see")
if missing:
    print(f"{sys.executable}: missing {', '.join(missing)}", file=sys.stderr)
sys.exit(bool(missing))
PYTHON
}

python=${PYTHON:-python3}
if ! usable "$python"; then
    echo "making an environment with the CUDA build of torch, several gigabytes" >&2
    "$python" -m venv .venv-gpu
    python=.venv-gpu/bin/python
    # The exact string keeps pip from taking a CPU build.
    "$python" -m pip install --quiet 'torch===2.13.0' triton numpy numba jaxtyping
    usable "$python"
fi
PYTHONPATH="src:bench${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 timeout 480 "$python" bench/gpu.py ${OUT:+--out "$OUT"} "$@"
