"""Does a command line fill a configuration, and does a wrong flag end with status 2 and a suggestion?"""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from thinwire.config.parse import parse


@dataclass(frozen=True)
class Experts:
    learning_rate: float = 1e-3
    difference: Literal["central", "one_sided"] = "central"


@dataclass(frozen=True)
class Run:
    seed: int = 1
    experts: Experts = field(default_factory=Experts)


def test_defaults_and_dotted_overrides() -> None:
    assert parse(Run, [], prog="thinwire") == Run()
    given = parse(Run, ["--seed", "7", "--experts.learning-rate", "2.5e-3"], prog="thinwire")
    assert given == Run(seed=7, experts=Experts(learning_rate=2.5e-3))


def test_a_function_is_called() -> None:
    def double(value: int) -> int:
        return 2 * value

    assert parse(double, ["--value", "21"], prog="thinwire") == 42


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--experts.learning-rat", "1"], "learning-rate"),
        (["--seed", "one"], "seed"),
        (["--experts.difference", "centre"], "one_sided"),
    ],
)
def test_a_mistake_exits_with_status_2_and_names_the_right_flag(
    argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(Run, argv, prog="thinwire")
    assert caught.value.code == 2
    output = capsys.readouterr()
    assert named in output.err + output.out
