"""What does a person see when something is wrong?  One message: what, where and how to fix it.

``UserError`` is the person's mistake (exit status 2); ``RunFailedError`` is ours or the machine's (exit status 1);
``InterruptedRunError`` carries the command that continues (exit status 130).  The command line turns each into text;
a library caller catches them like any exception.
"""

from collections.abc import Sequence


class ThinwireError(Exception):
    """Base of every error this package raises on purpose."""

    exit_status = 1


class UserError(ThinwireError):
    """A mistake in a path, a flag, a file or a folder.

    Args:
        what: what is wrong, one sentence without a full stop.
        where: the path, flag or place it was found.
        fix: what to do about it.
    """

    exit_status = 2

    def __init__(self, what: str, *, where: str, fix: str) -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(f"{what}\n  where: {where}\n  fix:   {fix}")


class ConfigError(UserError):
    """Every violation of a configuration, all at once.

    Args:
        violations: one line each, naming the key, the value and the rule.
        where: the preset or file the configuration came from.
    """

    def __init__(self, violations: Sequence[str], *, where: str) -> None:
        self.violations = tuple(violations)
        listed = "\n".join(f"    - {line}" for line in violations)
        count = "1 setting is" if len(violations) == 1 else f"{len(violations)} settings are"
        super().__init__(f"{count} out of range\n{listed}", where=where, fix="change the settings named above")


class RunFailedError(ThinwireError):
    """The run could not go on for a reason that no flag or file explains."""

    exit_status = 1


class InterruptedRunError(ThinwireError):
    """A person or the machine asked the run to stop; everything acknowledged is kept."""

    exit_status = 130


def missing_extra(package: str, *, extra: str, needed_for: str) -> UserError:
    """The error for an optional package that is not installed, naming the extra that brings it."""
    return UserError(
        f"{needed_for} needs the package '{package}', which is not installed",
        where=f"optional extra [{extra}]",
        fix=f"pip install 'thinwire[{extra}]'",
    )
