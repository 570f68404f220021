"""Which items are there?  All of them in the order of the paper, looked up by name or by what they cover."""

import difflib
import importlib
from collections.abc import Sequence

from thinwire.base.errors import UserError
from thinwire.reproduction.item import Item

FAMILIES: tuple[str, ...] = (
    "soma_fixed_size",
    "soma_inference",
    "soma_sweeps",
    "soma_losses",
    "soma_gradient_error",
    "soma_variance",
    "soma_fixed_objective",
    "soma_ablations",
    "soma_allocations",
    "soma_active_experts",
    "soma_wikitext",
    "soma_exchange",
    "soma_accounting",
    "soma_interpolated",
    "soma_budgets",
)
"""Files of this room, in the order of the paper, each with its ``ITEMS``."""


def all_items() -> tuple[Item, ...]:
    """Every item. The families are imported here, so that a page of results needs none of them."""
    modules = [importlib.import_module(f"thinwire.reproduction.{family}") for family in FAMILIES]
    return tuple(item for module in modules for item in module.ITEMS)


def find_item(name: str, *, among: Sequence[Item]) -> Item:
    """The item of that name, or the one that covers it; ``fig11`` is short for ``soma-fig11``.

    Raises:
        UserError: there is none; the message has the nearest name.
    """
    known = {alias: item for item in among for alias in _names(item)}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise UserError(
        f"there is no item '{name}'", where="thinwire reproduce ITEM", fix=f"{hint}thinwire reproduce --list names all"
    )


def _names(item: Item) -> list[str]:
    """In full, and without the method where that is still clear."""
    full = [item.name, *item.covers]
    return full + [name.removeprefix("soma-") for name in full]
