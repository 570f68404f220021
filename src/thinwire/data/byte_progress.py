"""How far is work that is measured in bytes?  Counted in whole MB, so that the numbers fit a line of a terminal."""

from thinwire.base.progress import Progress

MEGABYTE = 1_000_000


class ByteTask:
    """A bar named ``NAME (MB)``; what is left below one MB is counted as one when it closes.

    Args:
        progress: where it is shown.
        name: what is done.
        num_bytes: the total, None where unknown.
    """

    def __init__(self, progress: Progress, name: str, *, num_bytes: int | None) -> None:
        total = None if num_bytes is None else -(-num_bytes // MEGABYTE)
        self._task = progress.task(f"{name} (MB)", total)
        self._waiting_bytes = 0

    def advance(self, num_bytes: int) -> None:
        self._waiting_bytes += num_bytes
        whole, self._waiting_bytes = divmod(self._waiting_bytes, MEGABYTE)
        if whole:
            self._task.advance(whole)

    def close(self) -> None:
        if self._waiting_bytes:
            self._task.advance(1)
        self._task.close()
