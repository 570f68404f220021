"""GPT-2's tokens are the library's on text, keep any bytes, and name a file that is missing or damaged."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import thinwire.data.byte_pairs as byte_pairs
import tiny_tokens
from thinwire.base.errors import UserError
from thinwire.data import tokenizer_files
from thinwire.data.byte_pairs import BytePairTokenizer
from thinwire.data.tokenizer_files import files_in, installed_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokens.write_tokenizer_files(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> BytePairTokenizer:
    return BytePairTokenizer(files_in(folder))


def by_the_library(folder: Path, text: str) -> list[int]:
    library = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return library.encode(text).ids


TEXTS = [
    "the sailor and the lantern",
    "it's  3 \t\n\n  o'clock, we've 10€ and ½ \u00a0\u3000 left; 島と灯台🏝\r\n",
    "\x00\x1c!\x1c \x1f.",
    "<|endoftext|> is <|endoftext|>",
    "",
    " ",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_has_the_librarys_tokens_and_comes_back(tokenizer: BytePairTokenizer, folder: Path, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokens.tolist() == by_the_library(folder, text)
    assert tokenizer.end_token not in tokens
    assert tokenizer.decode(tokens) == text.encode()
    assert tokenizer.token_bytes[tokens].sum() == len(text.encode())


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff",
        b"\xc3",
        b"caf\xe9 the \xe9\xa8 sailor\x80\x80",
        b"\xed\xb2\x80 a lone surrogate",
        b"\xf0\x9f\x8f the island \xc0\xaf",
        bytes(range(256)) * 3,
    ],
)
def test_bytes_that_are_no_text_come_back(tokenizer: BytePairTokenizer, payload: bytes) -> None:
    assert tokenizer.decode(tokenizer.encode(payload)) == payload


def test_random_bytes_come_back(tokenizer: BytePairTokenizer) -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        payload = generator.integers(0, 256, 200, np.uint8).tobytes()
        tokens = tokenizer.encode(payload)
        assert tokenizer.decode(tokens) == payload
        assert tokenizer.token_bytes[tokens].sum() == 200


def test_text_around_invalid_bytes_is_encoded_as_ever(tokenizer: BytePairTokenizer) -> None:
    left, right = tokenizer.encode("the sailor"), tokenizer.encode(" and the anchor")
    (symbol,) = tokenizer.encode(b"\xff")
    assert tokenizer.encode(b"the sailor\xff and the anchor").tolist() == [*left, symbol, *right]
    assert len(left) < len("the sailor")


def test_cutting_a_long_text_changes_no_token(
    tokenizer: BytePairTokenizer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(1)
    alphabet = [*"the anchor's 'll", "  ", "\n", "\t ", "\u00a0", "\u3000", "é", "🏝", "7", "!", "\x1c", "\x1f"]
    text = "".join(generator.choice(alphabet, 4000).tolist())
    monkeypatch.setattr(byte_pairs, "PIECE_CHARACTERS", 7)
    monkeypatch.setattr(byte_pairs, "BATCH_CHARACTERS", 50)
    assert tokenizer.encode(text).tolist() == by_the_library(folder, text)


def test_a_text_without_spaces_is_cut_and_comes_back(
    tokenizer: BytePairTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_pairs, "PIECE_CHARACTERS", 10)
    monkeypatch.setattr(byte_pairs, "MAX_PIECE_CHARACTERS", 21)
    text = "thethethé" * 30
    assert tokenizer.decode(tokenizer.encode(text)) == text.encode()


def test_documents_end_where_the_batches_say(tokenizer: BytePairTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [b"the harbour", b"", b"\xff\xfe", b"and the anchor " * 5, b"x"]
    expected = [np.append(tokenizer.encode(payload), tokenizer.end_token) for payload in payloads]
    for size in (1, 8, 1 << 20):
        monkeypatch.setattr(byte_pairs, "BATCH_CHARACTERS", size)
        batches = list(tokenizer.encode_documents(payloads))
        assert np.array_equal(np.concatenate([batch.tokens for batch in batches]), np.concatenate(expected))
        before = np.cumsum([0, *(len(batch.tokens) for batch in batches)])
        ends = np.concatenate([batch.ends + start for batch, start in zip(batches, before, strict=False)])
        assert ends.tolist() == (np.cumsum([len(tokens) for tokens in expected]) - 1).tolist()
    assert tokenizer.decode(np.concatenate(expected)) == b"".join(payload + b"\0" for payload in payloads)


def test_a_saved_tokenizer_is_the_same(tokenizer: BytePairTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "copy")
    again = BytePairTokenizer(files_in(tmp_path / "copy"))
    assert again.sha256 == tokenizer.sha256
    assert again.encode("the lantern").tolist() == tokenizer.encode("the lantern").tolist()
    with pytest.raises(IndexError):
        again.decode(np.array([tiny_tokens.VOCABULARY]))


def test_either_pair_of_names_is_taken(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "vocab.json", tmp_path / "encoder.json")
    with pytest.raises(UserError, match=r"lacks tokenizer files: vocab\.bpe"):
        files_in(tmp_path)
    shutil.copy(folder / "merges.txt", tmp_path / "vocab.bpe")
    assert BytePairTokenizer(files_in(tmp_path)).vocab_size == tiny_tokens.VOCABULARY


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_a_missing_file_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(folder, tmp_path / "files")
    (tmp_path / "files" / name).unlink()
    with pytest.raises(UserError, match=f"lacks tokenizer files: {name}") as caught:
        files_in(tmp_path / "files")
    assert "huggingface.co/openai-community/gpt2" in caught.value.fix
    with pytest.raises(UserError, match="no such folder"):
        files_in(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("vocab.json", b"{", "not valid JSON"),
        ("vocab.json", b"[]", "0, 1, 2"),
        ("vocab.json", b'{"a": 1, "b": 1}', "0, 1, 2"),
        ("vocab.json", b'{"a": 0, "<|endoftext|>": 1}', "256 bytes"),
        ("merges.txt", b"#version: 0.2\nt h\n", "1 merges do not fit the 300 tokens"),
        ("merges.txt", b"#version: 0.2\nthe\n", "line 2 is not two tokens"),
        ("merges.txt", b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_damaged_file_is_named(folder: Path, tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    shutil.copytree(folder, tmp_path / "files")
    (tmp_path / "files" / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        BytePairTokenizer(files_in(tmp_path / "files"))
    assert reason in str(caught.value)
    assert name in caught.value.where


def test_files_of_two_tokenizers_do_not_pass(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "files")
    lines = (tmp_path / "files" / "merges.txt").read_text().splitlines()
    (tmp_path / "files" / "merges.txt").write_text("\n".join([*lines[:-1], "q z"]) + "\n")
    with pytest.raises(UserError, match="damaged") as caught:
        BytePairTokenizer(files_in(tmp_path / "files"))
    assert caught.value.where.endswith("merges.txt")
    vocabulary = json.loads((folder / "vocab.json").read_text())
    vocabulary["島"] = len(vocabulary)
    (tmp_path / "files" / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(UserError, match="stands for no byte"):
        BytePairTokenizer(files_in(tmp_path / "files"))


class Installed:
    """A distribution that lists two files."""

    def __init__(self, folder: Path) -> None:
        self.files = [InstalledFile(folder / "vocab.json"), InstalledFile(folder / "other.py")]


class InstalledFile:
    def __init__(self, path: Path) -> None:
        self.name, self._path = path.name, path

    def locate(self) -> Path:
        return self._path


def test_an_installed_package_may_carry_the_files(
    folder: Path, tokenizer: BytePairTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_files, "distributions", lambda: [Installed(folder)])
    with pytest.raises(UserError, match="no installed package") as caught:
        installed_files()  # not GPT-2's
    assert "--tokenizer-files" in caught.value.fix
    monkeypatch.setattr(tokenizer_files, "GPT2_SHA256", tuple(tokenizer.sha256.values()))
    assert installed_files() == files_in(folder)


@pytest.mark.shared_data
def test_gpt2_gives_wikitext_its_usual_count(shared_data: Path) -> None:
    tokenizer = BytePairTokenizer(files_in(shared_data / "gpt2"))
    assert (tokenizer.vocab_size, tokenizer.end_token) == (50_257, 50_256)
    assert tuple(tokenizer.sha256.values()) == tokenizer_files.GPT2_SHA256
    text = (shared_data / "wikitext" / "wiki.test.raw").read_bytes()
    tokens = tokenizer.encode(text)
    assert len(tokens) == 286_221
    assert tokenizer.decode(tokens) == text
    assert tokenizer.encode("Hello world").tolist() == [15496, 995]
