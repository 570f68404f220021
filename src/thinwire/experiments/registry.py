"""Which presets are there?  Name -> function; the first line of its docstring says what it is."""

import difflib
import re
from collections.abc import Callable

from thinwire.base.errors import UserError
from thinwire.experiments import demo, eggroll, soma, subspaces
from thinwire.soma.config import SomaConfig
from thinwire.soma.eggroll_config import EggrollConfig
from thinwire.subspaces.config import SubspacesConfig

Config = SomaConfig | EggrollConfig | SubspacesConfig
"""Of any method; its type says which."""
PRESETS: dict[str, Callable[[], Config]] = {
    "demo": demo.demo,
    "soma-small": soma.soma_small,
    "soma-small-central": soma.soma_small_central,
    "soma-small-random-shards": soma.soma_small_random_shards,
    "soma-small-iid": soma.soma_small_iid,
    "soma-small-cold": soma.soma_small_cold,
    "soma-small-random-head": soma.soma_small_random_head,
    "soma-paper-n1": soma.soma_paper_n1,
    "soma-paper-n2": soma.soma_paper_n2,
    "soma-paper-n8": soma.soma_paper_n8,
    "soma-paper-n32": soma.soma_paper_n32,
    "soma-paper-n256": soma.soma_paper_n256,
    "soma-wide-n1": soma.soma_wide_n1,
    "soma-wide-n2": soma.soma_wide_n2,
    "soma-wide-n8": soma.soma_wide_n8,
    "eggroll-small": eggroll.eggroll_small,
    "eggroll-paper-d20": eggroll.eggroll_paper_d20,
    "eggroll-paper-d29": eggroll.eggroll_paper_d29,
    "eggroll-paper-d58": eggroll.eggroll_paper_d58,
    "eggroll-paper-d118": eggroll.eggroll_paper_d118,
    "eggroll-paper-d339": eggroll.eggroll_paper_d339,
    "subspaces-small": subspaces.subspaces_small,
    "subspaces-small-plain": subspaces.subspaces_small_plain,
    "subspaces-small-fixed": subspaces.subspaces_small_fixed,
    "subspaces-small-random-rotation": subspaces.subspaces_small_random_rotation,
    "subspaces-small-no-warmup": subspaces.subspaces_small_no_warmup,
    "subspaces-small-top-k": subspaces.subspaces_small_top_k,
    "subspaces-small-quantised": subspaces.subspaces_small_quantised,
    "subspaces-800m": subspaces.subspaces_800m,
}


def describe() -> dict[str, str]:
    """Preset -> what it is, from the start of its docstring up to a colon, a semicolon or the sentence's end."""
    end = r"[:;]\s|\.(?:\s*\n|\s+[A-Z]|\s*$)"
    return {name: re.split(end, make.__doc__ or "")[0] for name, make in PRESETS.items()}


def preset(name: str) -> Config:
    """The configuration of a preset. Raises UserError, with the nearest name, where there is none."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise UserError(
            f"there is no preset '{name}'", where="train PRESET", fix=f"{hint}Presets: {', '.join(PRESETS)}"
        )
    return PRESETS[name]()
