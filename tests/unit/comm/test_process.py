"""Is a process's place read from torchrun's variables, whole or not at all, and does a missing store say so?"""

import pytest

from thinwire.base.errors import UserError
from thinwire.comm.process import TORCHRUN, Place, open_store, place_from_environment

WHOLE = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)


def place(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Place | None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return place_from_environment()


def test_nothing_set_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place(monkeypatch) is None


def test_torchrun_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place(monkeypatch, **WHOLE) == Place(rank=2, size=4, master="here", port=29500)
    shared = place(monkeypatch, **WHOLE, LOCAL_WORLD_SIZE="2", TORCHELASTIC_RESTART_COUNT="3")
    assert shared == Place(rank=2, size=4, master="here", port=29500, attempt=3, here=2)
    found = place(monkeypatch, TORCHELASTIC_USE_AGENT_STORE="True")
    assert found is not None
    assert found.store_runs


@pytest.mark.parametrize("name", WHOLE)
def test_half_a_place_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rest = {key: value for key, value in WHOLE.items() if key != name}
    with pytest.raises(UserError, match=f"but {name} is not"):
        place(monkeypatch, **rest)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RANK", "4", "not below WORLD_SIZE=4"),
        ("RANK", "two", "RANK=two is no whole number"),
        ("MASTER_PORT", "0", "MASTER_PORT=0 is no port"),
    ],
)
def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        place(monkeypatch, **{**WHOLE, name: value})


def test_a_store_is_served_and_reached() -> None:
    served = open_store(host="127.0.0.1", port=0, serve=True, timeout_seconds=5.0)
    client = open_store(host="127.0.0.1", port=served.port, serve=False, timeout_seconds=5.0)
    client.set("key", "value")
    assert served.get("key") == b"value"


def test_a_store_nobody_serves_is_named() -> None:
    served = open_store(host="127.0.0.1", port=0, serve=True, timeout_seconds=5.0)
    port = served.port
    del served
    with pytest.raises(UserError, match=f"(?s)nobody serves the store.*127.0.0.1:{port}"):
        open_store(host="127.0.0.1", port=port, serve=False, timeout_seconds=0.2)


def test_a_taken_port_is_named() -> None:
    served = open_store(host="127.0.0.1", port=0, serve=True, timeout_seconds=5.0)
    with pytest.raises(UserError, match=f"(?s)cannot be served.*127.0.0.1:{served.port}"):
        open_store(host="127.0.0.1", port=served.port, serve=True, timeout_seconds=1.0)
