"""When is cached machine code stale, and what if it cannot be kept or read?

Numba keeps compiled functions on disk and compares a stamp of the file that defines them.  A kernel is made of
functions and intrinsics from several files, so its stamp here is a digest of all of them; otherwise an update of the
package could go on running old code.  A cache that cannot be written or is damaged costs time, never an answer.
"""

import functools
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


@functools.cache
def sources_digest() -> str:
    """SHA-256 of every Python file of this room."""
    hasher = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        hasher.update(path.name.encode() + b"\0" + path.read_bytes())
    return hasher.hexdigest()


def compiled(function: Callable[..., Any]) -> Any:
    """Compile at the first call, keep the machine code on disk, release the interpreter's lock.

    Where no folder can be written, or this version of Numba does not let the stamp be set, nothing is kept on disk:
    slower to start, never stale.
    """
    dispatcher = njit(nogil=True)(function)
    try:
        cache = _Cache(function)
    except RuntimeError:  # "no locator available": no folder can be written
        _say_once("no folder for compiled kernels can be written (NUMBA_CACHE_DIR names one): every start compiles")
        return dispatcher
    if not (hasattr(dispatcher, "_cache") and hasattr(cache._cache_file, "_source_stamp")):
        return dispatcher
    cache._cache_file._source_stamp = sources_digest()
    dispatcher._cache = cache
    return dispatcher


class _Cache(FunctionCache):
    """Numba's, but that a damaged or full cache means compiling again instead of an error."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function, or None where there is none that can be read."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # unpickling damaged bytes raises errors of any kind
            _say_once("compiled kernels on disk are damaged or cannot be read: they are compiled anew")
            self._forget()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError:
            _say_once("compiled kernels cannot be written to disk: the next start compiles again")

    def _forget(self) -> None:
        """An empty index; where it cannot be written either, nothing more is kept."""
        try:
            self.flush()
        except OSError:
            self.disable()


@functools.cache
def _say_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)
