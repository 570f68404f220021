"""Does the same seed write the same bytes, from any prompt, and is the mixture what scoring says it is?"""

import base64
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from thinwire.base.errors import UserError
from thinwire.cli import generate as command
from thinwire.kernels.routed_scores.resident import ResidentExperts
from thinwire.kernels.routed_scores.writing import Reading, read_text
from thinwire.soma.ensemble import Ensemble, load_ensemble, score_bytes
from thinwire.soma.generate import CONTEXT_BYTES, REROUTE_BYTES, generate, generate_batch, sample_byte
from thinwire.soma.router import Router, Routes

PROMPT = b"harbour anchor sailor rigging compass lantern seagull"
OTHER = b" butter pepper skillet onion saucepan vinegar pastry garlic simmer kettle"


@pytest.fixture(scope="module")
def ensemble(tiny_run: Path) -> Ensemble:
    return load_ensemble(tiny_run)


def test_the_same_seed_writes_the_same_bytes(ensemble: Ensemble) -> None:
    first, second = (generate(ensemble, PROMPT, num_bytes=40, seed=3) for _ in range(2))
    assert first == second
    assert first.prompt == PROMPT
    assert len(first.text) == 40
    assert generate(ensemble, PROMPT, num_bytes=40, seed=4).text != first.text


def test_a_longer_sample_begins_with_the_shorter(ensemble: Ensemble) -> None:
    assert generate(ensemble, PROMPT, num_bytes=50).text.startswith(generate(ensemble, PROMPT, num_bytes=20).text)


def test_temperature_zero_takes_the_likeliest_byte_whatever_the_seed(ensemble: Ensemble) -> None:
    first, second = (generate(ensemble, PROMPT, num_bytes=30, temperature=0.0, seed=seed).text for seed in (1, 2))
    assert first == second
    # The likeliest byte as scoring sees it, from the same prompt and experts.
    scored = replace(ensemble, prefix_bytes=len(PROMPT) - 1)
    candidates = [score_bytes(scored, PROMPT + bytes([byte]) + b".")[0] for byte in range(256)]
    assert first[0] == int(np.argmax(candidates))


def test_an_empty_prompt_starts_cold(ensemble: Ensemble) -> None:
    """Too little to route by: experts by prior, likeliest first."""
    written = generate(replace(ensemble, active_experts=2), b"", num_bytes=20)
    (first_byte, experts, weights), *rest = written.experts
    prior = ensemble.router.prior
    assert (written.prompt, len(written.text), first_byte, rest) == (b"", 20, 0, [])
    assert sorted(experts) == [0, 1]
    np.testing.assert_allclose(weights, prior[experts], rtol=1e-12)


def test_a_long_prompt_is_read_by_its_last_1024_bytes(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[bytes] = []

    def listening(model: ResidentExperts, experts: list[int], text: bytes) -> list[Reading]:
        readings.append(text)
        return read_text(model, experts, text)

    monkeypatch.setattr("thinwire.soma.generate.read_text", listening)
    prompt = OTHER * 20 + (PROMPT * 30)[-CONTEXT_BYTES:]
    written = generate(ensemble, prompt, num_bytes=2)
    assert readings == [prompt[-CONTEXT_BYTES:]]
    assert written.prompt == prompt
    assert written.text == generate(ensemble, prompt[-CONTEXT_BYTES:], num_bytes=2).text


def test_an_expert_that_stays_reads_on_and_one_that_joins_reads_what_it_missed(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expert 0 writes the first part; both write the second."""
    calls: list[tuple[list[int], bytes]] = []

    def listening(model: ResidentExperts, experts: list[int], text: bytes) -> list[Reading]:
        calls.append((experts, text))
        return read_text(model, experts, text)

    chosen = [[0], [1, 0]]

    def route(*_: object, **__: object) -> Routes:
        experts = np.array([chosen[len(calls)]], np.int32)
        like = np.ones(experts.shape)
        return Routes(experts, like.astype(np.float32), like / experts.size, np.zeros(1, np.bool_))

    monkeypatch.setattr("thinwire.soma.generate.read_text", listening)
    monkeypatch.setattr(Router, "route", route)
    written = generate(ensemble, PROMPT, num_bytes=REROUTE_BYTES + 4)
    assert calls == [([0], PROMPT), ([1], PROMPT + written.text[:REROUTE_BYTES])]
    assert written.experts == [(0, [0], [1.0]), (REROUTE_BYTES, [1, 0], [0.5, 0.5])]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("active_experts", [1, 2])
def test_a_batch_is_what_each_prompt_gives_alone(ensemble: Ensemble, threads: int, active_experts: int) -> None:
    prompts = [PROMPT, OTHER, b"", b"\xff" * 40, PROMPT, PROMPT + OTHER, OTHER * 30]
    several = replace(ensemble, active_experts=active_experts)
    arguments = {"num_bytes": REROUTE_BYTES + 20, "seed": 5}
    together = generate_batch(several, prompts, threads=threads, **arguments)
    assert together == [generate(several, prompt, **arguments) for prompt in prompts]
    assert generate_batch(several, [], **arguments) == []


def test_the_command_continues_every_line_of_a_file(
    tiny_run: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    prompts = [PROMPT, b"", b"caf\xe9", OTHER.strip()]
    (tmp_path / "prompts.txt").write_bytes(b"\n".join(prompts) + b"\n")
    asked = [str(tiny_run), "--prompts-file", str(tmp_path / "prompts.txt"), "--bytes", "12", "--seed", "2"]
    alone = [generate(load_ensemble(tiny_run), prompt, num_bytes=12, seed=2) for prompt in prompts]
    command.main(asked)
    assert capsysbinary.readouterr().out == b"".join(one.prompt + one.text + b"\n" for one in alone)
    command.main([*asked, "--json"])
    (samples,) = json.loads(capsysbinary.readouterr().out).values()
    assert [base64.b64decode(sample["bytes_base64"]) for sample in samples] == [one.text for one in alone]


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [(None, [], "cannot be read"), (b"", [], "is empty"), (b"a", ["--prompt", "b"], "given twice")],
)
def test_a_file_without_prompts_is_refused(
    tmp_path: Path, content: bytes | None, more: list[str], message: str
) -> None:
    file = tmp_path / "prompts.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=message):
        command.main([str(tmp_path), "--prompts-file", str(file), *more])


def test_routing_once_keeps_its_experts_and_refreshing_asks_again(ensemble: Ensemble) -> None:
    num_bytes = 2 * REROUTE_BYTES + 10
    once = generate(ensemble, PROMPT, num_bytes=num_bytes, route="once")
    refreshed = generate(ensemble, PROMPT, num_bytes=num_bytes, route="refresh")
    assert [part[0] for part in once.experts] == [0]
    assert [part[0] for part in refreshed.experts] == [0, REROUTE_BYTES, 2 * REROUTE_BYTES]
    assert once.text[:REROUTE_BYTES] == refreshed.text[:REROUTE_BYTES]


def test_different_subjects_go_to_different_experts(ensemble: Ensemble) -> None:
    chosen = {generate(ensemble, prompt, num_bytes=1).experts[0][1][0] for prompt in (PROMPT, OTHER, b" verdict " * 9)}
    assert chosen == {0, 1}


@pytest.mark.parametrize("prompt", [b"\xff\xfe\x00\x80" * 20, b"\x00", bytes(range(256))])
def test_any_bytes_are_a_prompt(ensemble: Ensemble, prompt: bytes) -> None:
    assert len(generate(ensemble, prompt, num_bytes=5).text) == 5


@pytest.mark.parametrize("temperature", [1e-300, 1e-8, 0.5, 1.0, 100.0])
def test_sampling_inverts_the_cumulative_distribution(temperature: float) -> None:
    probability = np.zeros(256)
    probability[[10, 20, 30]] = [0.2, 0.5, 0.3]
    drawn = [sample_byte(probability, temperature=temperature, uniform=u) for u in np.linspace(0, 1, 1001)[:-1]]
    assert set(drawn) <= {10, 20, 30}
    powers = np.exp(np.log([0.4, 1.0, 0.6]) / temperature)
    expected = powers / powers.sum()
    counts = np.array([drawn.count(byte) for byte in (10, 20, 30)])
    np.testing.assert_allclose(counts / 1000, expected, atol=2e-3)


def test_the_ends_of_the_unit_interval_are_bytes_that_can_occur() -> None:
    probability = np.zeros(256)
    probability[[7, 9]] = 0.5
    assert sample_byte(probability, temperature=1.0, uniform=0.0) == 7
    assert sample_byte(probability, temperature=1.0, uniform=np.nextafter(1.0, 0.0)) == 9
