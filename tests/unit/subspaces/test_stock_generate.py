"""Does the cache change nothing, is a sample addressed by its seed, and is a long prompt read from its end?"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.subspaces.full_attention import FullAttention
from thinwire.subspaces.generate import generate, sample_token
from thinwire.subspaces.language_model import LanguageModel, load_language_model


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> LanguageModel:
    return load_language_model(tiny_llama)


@pytest.fixture(scope="module")
def token_model(tiny_token_llama: Path) -> LanguageModel:
    return load_language_model(tiny_token_llama)


def likeliest(model: LanguageModel, tokens: list[int]) -> int:
    """Without a cache: the whole text read anew."""
    with torch.no_grad():
        (logits,) = model.stock.llama([torch.tensor([tokens])], FullAttention(model.stock.llama.config))
    return int(logits[0, -1].argmax())


def test_the_cache_changes_nothing(model: LanguageModel) -> None:
    text = list(b"harbour an")
    for _ in range(30):
        text.append(likeliest(model, text))
    assert generate(model, b"harbour an", num_bytes=30, temperature=0.0).text == bytes(text[10:])


def test_past_the_context_the_newer_half_is_read_again(model: LanguageModel) -> None:
    """48 tokens are read; the 49th drops all but the last 24, and they grow again."""
    prompt = bytes(range(65, 105))
    known, written = list(prompt), []
    for _ in range(40):
        if len(known) > 48:
            known = known[-24:]
        token = likeliest(model, known)
        known.append(token)
        written.append(token)
    assert generate(model, prompt, num_bytes=40, temperature=0.0).text == bytes(written)


def test_of_a_long_prompt_the_end_is_read(model: LanguageModel) -> None:
    tail = b"garlic simmer kettle butter pepper skillet onion"
    assert len(tail) == 48
    long = generate(model, b"verdict " * 9 + tail, num_bytes=12, temperature=0.0)
    short = generate(model, tail, num_bytes=12, temperature=0.0)
    assert (long.prompt_tokens, long.unread_prompt_tokens) == (120, 72)
    assert (short.prompt_tokens, short.unread_prompt_tokens) == (48, 0)
    assert long.text == short.text
    assert long.prompt == b"verdict " * 9 + tail


def test_an_empty_prompt_begins_where_a_document_does(model: LanguageModel, token_model: LanguageModel) -> None:
    first = generate(model, b"", num_bytes=1, temperature=0.0)
    assert first.text[0] == likeliest(model, [0])
    assert (first.prompt, first.prompt_tokens) == (b"", 0)
    end = token_model.tokenizer.end_token
    expected = token_model.tokenizer.decode(np.array([likeliest(token_model, [end])]))
    assert generate(token_model, b"", num_bytes=len(expected), temperature=0.0).text == expected


def test_the_seed_is_the_address(model: LanguageModel) -> None:
    once = generate(model, b"sailor", num_bytes=40, temperature=1.0, seed=5).text
    assert generate(model, b"sailor", num_bytes=40, temperature=1.0, seed=5).text == once
    assert generate(model, b"sailor", num_bytes=20, temperature=1.0, seed=5).text == once[:20]
    assert generate(model, b"sailor", num_bytes=40, temperature=1.0, seed=6).text != once


def test_tokens_are_cut_at_the_last_byte_that_is_asked_for(token_model: LanguageModel) -> None:
    whole = generate(token_model, b"the harbour", num_bytes=40, temperature=1.0, seed=2)
    assert len(whole.text) == 40
    for length in range(1, 12):
        assert (
            generate(token_model, b"the harbour", num_bytes=length, temperature=1.0, seed=2).text == whole.text[:length]
        )
    assert whole.prompt_tokens == len(token_model.tokenizer.encode(b"the harbour")) < len(b"the harbour")


def test_a_prompt_that_is_not_utf8(model: LanguageModel, token_model: LanguageModel) -> None:
    for one in (model, token_model):
        assert len(generate(one, b"caf\xe9 \xff\x00", num_bytes=5).text) == 5


def test_a_context_of_one_token(model: LanguageModel) -> None:
    config = model.stock.config
    short = replace(config, sequence=replace(config.sequence, tokens=1, chunks=1))
    narrow = replace(model, stock=replace(model.stock, config=short))
    written = generate(narrow, b"ab", num_bytes=3, temperature=0.0).text
    known = ord("b")
    for byte in written:
        assert byte == likeliest(model, [known])
        known = byte


@given(uniform=st.floats(0, 1, exclude_max=True), temperature=st.sampled_from([1e-300, 0.1, 1.0, 100.0]))
def test_a_sample_is_always_a_possible_token(uniform: float, temperature: float) -> None:
    logits = np.array([-np.inf, 3.0, 1000.0, -1000.0, 3.0])
    token = sample_token(logits, temperature=temperature, uniform=uniform)
    assert token in (1, 2, 3, 4)
    if temperature <= 0.1:
        assert token == 2


def test_samples_follow_the_softmax() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.7]))
    places = (np.arange(1000) + 0.5) / 1000
    for temperature, expected in ((1.0, [0.1, 0.2, 0.7]), (0.5, np.array([1, 4, 49]) / 54)):
        drawn = [sample_token(logits, temperature=temperature, uniform=float(u)) for u in places]
        np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 1000, expected, atol=1e-3)
    assert sample_token(logits, temperature=0.0, uniform=0.0) == 2
