"""How are independent calls spread over threads?  Compiled code releases the lock, so plain threads do."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")
Workspace = TypeVar("Workspace")


def for_each(
    items: Sequence[Item],
    call: Callable[[Item, Workspace], None],
    *,
    make_workspace: Callable[[], Workspace],
    threads: int,
) -> None:
    """``call(item, workspace)`` for every item; a workspace is used by one call at a time.

    What a call writes must depend on its item alone, so that results are the same for any number of threads.
    """
    if threads <= 1 or len(items) <= 1:
        workspace = make_workspace()
        for item in items:
            call(item, workspace)
        return
    free: SimpleQueue[Workspace] = SimpleQueue()
    num_workers = min(threads, len(items))
    for _ in range(num_workers):
        free.put(make_workspace())

    def run(item: Item) -> None:
        workspace = free.get()
        try:
            call(item, workspace)
        finally:
            free.put(workspace)

    with ThreadPoolExecutor(num_workers) as pool:
        list(pool.map(run, items))
