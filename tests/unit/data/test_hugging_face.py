"""Hub data sets are read at the revision that is meant, and WikiText's bytes are the official ones."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from thinwire.base.errors import UserError
from thinwire.data.documents import ReadOptions
from thinwire.data.hugging_face import HubName, HuggingFaceSource, parse_hub_name, rebuild_wikitext, wikitext_articles


class FakeHub:
    """Stands in for the packages ``datasets`` and ``huggingface_hub``."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.calls = rows, []  # type: ignore[var-annotated]
        self.failure: Exception | None = None

    def load_dataset(self, *names: str | None, **options: Any) -> Iterator[dict[str, Any]]:
        if self.failure:
            raise self.failure
        self.calls.append((names, options))
        return iter(self.rows)

    def HfApi(self) -> Any:
        return SimpleNamespace(dataset_info=lambda _, revision: SimpleNamespace(sha=f"sha-of-{revision}"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub([{"text": "first", "id": "<urn:1>", "url": "u"}, {"text": "second", "id": "<urn:2>", "url": "v"}])
    monkeypatch.setitem(sys.modules, "datasets", fake)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)  # type: ignore[arg-type]
    return fake


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("hf:fineweb-edu", HubName("HuggingFaceFW/fineweb-edu", "sample-100BT", "train")),
        ("hf:HuggingFaceFW/fineweb-edu:sample-10BT", HubName("HuggingFaceFW/fineweb-edu", "sample-10BT", "train")),
        ("hf:wikitext-103:test", HubName("Salesforce/wikitext", "wikitext-103-raw-v1", "test")),
        ("hf:a/b", HubName("a/b", None, "train")),
        ("hf:a/b:c:validation", HubName("a/b", "c", "validation")),
    ],
)
def test_names_are_parsed(argument: str, expected: HubName) -> None:
    assert parse_hub_name(argument) == expected


@pytest.mark.parametrize("argument", ["hf:", "hf:a/b:", "hf:a:b:c:d"])
def test_other_names_are_refused(argument: str) -> None:
    with pytest.raises(UserError, match="not a name"):
        parse_hub_name(argument)


FINEWEB_EDU_COMMIT = "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"


@pytest.mark.parametrize(
    ("argument", "name", "subset", "revision"),
    [
        ("hf:fineweb-edu", "HuggingFaceFW/fineweb-edu", "sample-100BT", FINEWEB_EDU_COMMIT),
        ("hf:someone/corpus:part", "someone/corpus", "part", "sha-of-main"),
    ],
)
def test_a_data_set_is_streamed_at_its_pin_or_at_what_main_is(
    hub: FakeHub, argument: str, name: str, subset: str, revision: str
) -> None:
    source = HuggingFaceSource(argument)
    documents = list(source.documents(ReadOptions()))
    assert [document.payload for document in documents] == [b"first", b"second"]
    assert documents[0].identity == f"{name.split('/')[1]}\n<urn:1>"
    assert hub.calls == [((name, subset), {"split": "train", "streaming": True, "revision": revision})]
    assert source.inputs()[0].path == f"hf:{name}:{subset}:train@{revision}"


def test_wikitext_is_pinned_to_the_papers_revision(hub: FakeHub) -> None:
    hub.rows = [{"text": row} for row in ("", " = One = \n", "", " a \n", " = = S = = \n", " = Two = \n", " b \n")]
    documents = list(HuggingFaceSource("hf:wikitext-103").documents(ReadOptions()))
    assert [document.payload for document in documents] == [
        b" \n",
        b" = One = \n \n a \n = = S = = \n",
        b" = Two = \n b \n",
    ]
    assert hub.calls[0][1]["revision"] == "b08601e04326c79dfdd32d625aee71d232d685c3"


def test_wikitext_with_other_bytes_is_refused(hub: FakeHub) -> None:
    with pytest.raises(UserError, match="differs from the official text"):
        list(HuggingFaceSource("hf:wikitext-103:test").documents(ReadOptions()))
    assert hub.calls


@pytest.mark.shared_data
@pytest.mark.parametrize(("split", "file"), [("validation", "wiki.valid.raw"), ("test", "wiki.test.raw")])
def test_the_hubs_rows_rebuild_the_raw_file(shared_data: Path, split: Any, file: str) -> None:
    raw = (shared_data / "wikitext" / file).read_bytes()
    rows = [line if line.strip() else "" for line in raw.decode().splitlines(keepends=True)]
    assert "".join(rows).encode() != raw
    assert rebuild_wikitext(rows, split=split) == raw
    assert b"".join(wikitext_articles(rows)) == raw


def test_an_unreachable_hub_is_a_clear_error(hub: FakeHub) -> None:
    hub.failure = ConnectionError("no route to host\nlong details")
    with pytest.raises(UserError, match="cannot be read") as caught:
        list(HuggingFaceSource("hf:a/b").documents(ReadOptions()))
    assert caught.value.where == "a/b: no route to host"


def test_a_row_without_text_lists_the_columns(hub: FakeHub) -> None:
    with pytest.raises(UserError, match="column 'content'") as caught:
        list(HuggingFaceSource("hf:a/b").documents(ReadOptions("content")))
    assert "text, id, url" in caught.value.fix
    assert hub.calls


def test_without_datasets_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="datasets") as caught:
        HuggingFaceSource("hf:a/b")
    assert "thinwire[hf]" in caught.value.fix
