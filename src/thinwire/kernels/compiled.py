"""When is cached machine code stale?  When any source of this room has changed, not only the function's own file.

Numba keeps compiled functions on disk and compares a stamp of the file that defines them.  A kernel is made of
functions and intrinsics from several files, so its stamp here is a digest of all of them; otherwise an update of the
package could go on running old code.
"""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit


@functools.cache
def sources_digest() -> str:
    """SHA-256 of every Python file of this room."""
    hasher = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        hasher.update(path.name.encode() + b"\0" + path.read_bytes())
    return hasher.hexdigest()


def compiled(function: Callable[..., Any]) -> Any:
    """Compile at the first call, keep the machine code on disk, release the interpreter's lock.

    Where this version of Numba does not let the stamp be set, nothing is kept on disk: slower to start, never stale.
    """
    dispatcher = njit(cache=True, nogil=True)(function)
    cache_file: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if not hasattr(cache_file, "_source_stamp"):
        return njit(nogil=True)(function)
    cache_file._source_stamp = sources_digest()
    return dispatcher
