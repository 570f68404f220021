"""Does an error say what, where and how to fix it, with the exit status of its kind?"""

import pytest

from thinwire.base.errors import (
    ConfigError,
    InterruptedRunError,
    RunFailedError,
    ThinwireError,
    UserError,
    missing_extra,
)


def test_user_error_shows_what_where_and_fix() -> None:
    error = UserError("the file is empty", where="corpus/a.txt", fix="remove it")
    assert str(error) == "the file is empty\n  where: corpus/a.txt\n  fix:   remove it"
    assert (error.what, error.where, error.fix) == ("the file is empty", "corpus/a.txt", "remove it")


@pytest.mark.parametrize(
    ("kind", "status"), [(UserError, 2), (ConfigError, 2), (RunFailedError, 1), (InterruptedRunError, 130)]
)
def test_exit_statuses_are_the_contracts(kind: type[ThinwireError], status: int) -> None:
    assert kind.exit_status == status
    assert issubclass(kind, ThinwireError)


def test_config_error_lists_every_violation() -> None:
    error = ConfigError(["a = 0: must be at least 1", "b = -1: must be above zero"], where="preset demo")
    assert error.violations == ("a = 0: must be at least 1", "b = -1: must be above zero")
    for part in ("2 settings are out of range", *error.violations, "preset demo"):
        assert part in str(error)
    assert "1 setting is out of range" in str(ConfigError(["a = 0: must be at least 1"], where="x"))


def test_missing_extra_names_package_and_extra() -> None:
    error = missing_extra("pyarrow", extra="parquet", needed_for="reading .parquet files")
    assert "pyarrow" in error.what
    assert error.fix == "pip install 'thinwire[parquet]'"
    assert error.exit_status == 2
