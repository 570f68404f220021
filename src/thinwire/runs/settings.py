"""Which settings was this run started with?  ``config.json`` as the dataclass of its method, or a clear refusal."""

from typing import NamedTuple, TypeVar

from thinwire.base.errors import UserError
from thinwire.config.fingerprint import from_record
from thinwire.runs.layout import RunFolder

Config = TypeVar("Config")


class Method(NamedTuple):
    """How a method's runs are told: the ``kind`` in the file, and its name for people with an article."""

    kind: str
    called: str


def read_settings(folder: RunFolder, config_type: type[Config], *, method: Method) -> tuple[str, Config]:
    """The preset's name and the configuration.

    Raises:
        UserError: ``folder`` is no run folder, or one of another method or version.
    """
    record = folder.read_config()
    if record.get("kind") != method.kind:
        what = f"this run is of kind '{record.get('kind')}', not {method.kind}"
        raise UserError(what, where=str(folder.config), fix=f"give {method.called} run")
    try:
        return str(record["preset"]), from_record(config_type, record["config"])
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"config.json does not describe {method.called} run as this version writes it ({error})",
            where=str(folder.config),
            fix="restore it from a copy, or use the version of thinwire named in manifest.json",
        ) from error
