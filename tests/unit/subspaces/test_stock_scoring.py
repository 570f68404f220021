"""Is the score that of the stock model, every token counted once, and can the codec's look ahead not flatter it?"""

import itertools
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import tiny_subspaces
from thinwire.base.errors import UserError
from thinwire.data.corpus import Corpus
from thinwire.data.encode import ByteTokenizer
from thinwire.data.tokens import open_tokens
from thinwire.subspaces import scoring
from thinwire.subspaces.full_attention import FullAttention
from thinwire.subspaces.language_model import LanguageModel, load_language_model
from thinwire.subspaces.scoring import evaluate, score_windows
from thinwire.subspaces.texts import document_windows, text_to_score
from tiny_subspaces import CONFIG, checkpoint_files, finished_run

CONTRACT = {
    "name", "protocol", "model", "loss_nats_per_token", "perplexity", "loss_nats_per_byte", "bits_per_byte", "ci95",
    "scored_targets", "windows", "documents", "codec", "phase", "step", "num_parameters",
}  # fmt: skip


def loss_of(model: LanguageModel, tokens: np.ndarray) -> float:
    """Nats of all tokens but the first, summed, the plain way: all logits at once."""
    rows = torch.from_numpy(tokens.copy())[None]
    with torch.no_grad():
        (logits,) = model.stock.llama([rows[:, :-1]], FullAttention(model.stock.llama.config))
    return float(functional.cross_entropy(logits[0].double(), rows[0, 1:], reduction="sum"))


def test_the_record_of_the_runs_own_test(tiny_llama: Path) -> None:
    record = evaluate(tiny_llama)
    assert record.keys() >= CONTRACT
    assert (record["name"], record["model"], record["phase"], record["step"]) == ("test", "folded", "folded", 12)
    assert (record["windows"], record["scored_targets"]) == (8, 8 * 48)
    assert record["scored_bytes"] == record["scored_targets"]
    assert record["perplexity"] == pytest.approx(math.exp(record["loss_nats_per_token"]), rel=1e-12)
    assert record["loss_nats_per_byte"] == pytest.approx(record["loss_nats_per_token"], rel=1e-12)
    assert record["bits_per_byte"] == pytest.approx(record["loss_nats_per_byte"] / math.log(2), rel=1e-12)
    low, high = record["ci95"]
    assert low < record["loss_nats_per_token"] < high
    assert 1.0 < record["loss_nats_per_token"] < math.log(256)
    llama = load_language_model(tiny_llama).stock.llama
    assert record["num_parameters"] == sum(parameter.numel() for parameter in llama.parameters())


def test_a_test_split_is_scored_inside_its_documents_where_they_are_long_enough(tiny_folder: Path) -> None:
    short = replace(CONFIG.sequence, tokens=40)
    run = finished_run(tiny_folder, "llama-short", sequence=short, test_sequences=4)
    record = evaluate(run)
    assert record["protocol"] == "inside documents"
    assert (record["windows"], record["documents"]) == (4, 4)


def test_every_token_of_a_text_is_scored_once(tiny_llama: Path, tmp_path: Path) -> None:
    """Windows of 48 targets, the last of each document shorter; the first token is predicted from the end token."""
    model = load_language_model(tiny_llama)
    folder = tmp_path / "texts"
    folder.mkdir()
    texts = [b"harbour anchor sailor lantern " * 5, b"x", b"butter pepper skillet onion saucepan garlic simmer"]
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_bytes(text)
    record = evaluate(tiny_llama, on=folder)
    assert (record["name"], record["protocol"]) == ("texts", "documents")
    assert record["scored_targets"] == record["scored_bytes"] == sum(map(len, texts))
    assert (record["documents"], record["windows"]) == (3, 4 + 1 + 2)
    total = 0.0
    for text in texts:
        tokens = np.frombuffer(b"\x00" + text, np.uint8).astype(np.int64)
        total += sum(loss_of(model, tokens[start : start + 49]) for start in range(0, len(text), 48))
    assert record["loss_nats_per_token"] == pytest.approx(total / record["scored_targets"], rel=1e-6)


def test_windows_are_one_stream_cut_without_gap_or_overlap() -> None:
    documents = [bytes(range(1, 100)), b"", b"ab"]
    windows = list(document_windows(documents, tokenizer=ByteTokenizer(), window_tokens=10))
    assert [len(window.tokens) - 1 for window in windows] == [10] * 9 + [9, 2]
    assert {window.document for window in windows} == {0, 2}
    first = [window for window in windows if window.document == 0]
    assert b"".join(bytes(window.tokens[1:].tolist()) for window in first) == documents[0]
    assert first[0].tokens[0] == 0
    assert all(a.tokens[-1] == b.tokens[0] for a, b in itertools.pairwise(first))


def test_tokens_are_the_runs_own(tiny_token_llama: Path, tmp_path: Path) -> None:
    text = tmp_path / "my text.md"
    text.write_bytes(b"the harbour and the anchor \xff\xfe the lantern")
    record = evaluate(tiny_token_llama, on=text)
    model = load_language_model(tiny_token_llama)
    assert record["scored_bytes"] == len(text.read_bytes())
    assert record["scored_targets"] == len(model.tokenizer.encode(text.read_bytes())) < record["scored_bytes"]
    nats = record["loss_nats_per_token"] * record["scored_targets"]
    assert record["loss_nats_per_byte"] * record["scored_bytes"] == pytest.approx(nats, rel=1e-12)


def test_wikitext_is_cut_at_its_headings(tiny_llama: Path, tmp_path: Path) -> None:
    text = tmp_path / "wiki.txt"
    text.write_bytes(b" = Harbour = \n\n anchors and sails .\n\n = Kitchen = \n\n butter and onions .\n")
    record = evaluate(tiny_llama, on=text)
    assert (record["protocol"], record["documents"]) == ("wikitext", 2)
    whole = evaluate(tiny_llama, on=text, protocol="documents")
    assert (whole["protocol"], whole["documents"]) == ("documents", 1)
    assert whole["scored_targets"] == record["scored_targets"] == len(text.read_bytes())
    assert whole["ci95"] == pytest.approx([whole["loss_nats_per_token"]] * 2, abs=1e-12)


def test_batches_and_pieces_change_nothing(tiny_llama: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_language_model(tiny_llama)
    text = text_to_score(model, tiny_data)
    whole = score_windows(model, text)
    monkeypatch.setattr(scoring, "BATCH_TOKENS", 1)
    monkeypatch.setattr(scoring, "LOGITS_AT_ONCE", 7 * 256)
    pieces = score_windows(model, text)
    np.testing.assert_allclose(pieces.losses, whole.losses, rtol=1e-5)
    assert pieces.digest == whole.digest


def test_only_some_logits_exist_at_a_time(tiny_llama: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = load_language_model(tiny_llama), []
    monkeypatch.setattr(scoring, "LOGITS_AT_ONCE", 10 * 256)
    model.stock.llama.lm_head.register_forward_hook(lambda _, __, logits: rows.append(logits.shape[0]))
    score_windows(model, text_to_score(model, tiny_data))
    assert max(rows) == 10


def test_a_data_folder_gives_its_test_split(tiny_llama: Path, tiny_data: Path) -> None:
    own, other = evaluate(tiny_llama), evaluate(tiny_llama, on=tiny_data)
    assert other["name"] == "data"
    assert {**other, "name": "test"} == own


# --- as trained -----------------------------------------------------------------------------------------------------


def test_folded_the_codec_changes_only_the_wires_rounding(tiny_llama: Path) -> None:
    record = evaluate(tiny_llama)
    trained = record["as_trained"]
    assert record["loss_nats_per_token_as_trained"] == trained["loss_nats_per_token"]
    assert trained["windows"] == record["windows"]
    assert trained["stock_loss_nats_per_token"] == pytest.approx(record["loss_nats_per_token"], rel=1e-12)
    assert trained["loss_nats_per_token"] == pytest.approx(record["loss_nats_per_token"], abs=1e-3)


def test_as_trained_is_what_the_trainer_validates(tiny_folder: Path, tiny_data: Path) -> None:
    """The same sequences through the trainer's own validation, where theta is at work: as trained the loss is that one,
    and the stock model's, whose basis stands at theta's mean, differs from it."""
    run = finished_run(tiny_folder, "llama-compressed", phases=replace(CONFIG.phases, unplug="never"))
    record = evaluate(run)
    assert (record["phase"], record["model"]) == ("compressed", "folded")
    trained = record["as_trained"]
    assert trained["loss_nats_per_token"] == pytest.approx(validation_loss(run, tiny_data), rel=1e-6)
    assert abs(trained["loss_nats_per_token"] - trained["stock_loss_nats_per_token"]) > 1e-6


def validation_loss(run: Path, data: Path) -> float:
    """Of the newest checkpoint, by ``Trainer.validate`` over the windows of the test."""
    from thinwire.base.seeds import stream_key
    from thinwire.data.tokens import evaluation_sequences
    from thinwire.subspaces import saving, trainer
    from thinwire.subspaces.config import read_config
    from thinwire.subspaces.stock import THETA_PREFIX
    from thinwire.subspaces.team import team_of_one

    config, corpus = read_config(tiny_subspaces.RunFolder(run)), Corpus.open(data)
    stream = open_tokens(corpus, "test")
    rank = trainer.Trainer(
        config,
        team=team_of_one(),
        texts=trainer.Texts(open_tokens(corpus, "train"), stream),
        compute=trainer.Compute(torch.device("cpu")),
    )
    saved = saving.load_weights(run, step=saving.last_step(run))
    weights = {name: t for name, t in saved.tensors.items() if not name.startswith(THETA_PREFIX)}
    own = saving.load_rank(run, rank=0, step=saved.update, ranks_then=1)
    assert own is not None
    rank.load_state(step=saved.update, phase=saved.meta["phase"], weights=weights, own=own)
    found = evaluation_sequences(
        stream,
        tokens=config.sequence.tokens,
        max_sequences=config.test_sequences,
        key=stream_key(config.seed, "test sequences"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "evaluation_sequences", lambda *_, **__: found)
        return rank.validate()[0]


def test_a_leak_is_named_and_stays_out_of_the_stock_score(tiny_folder: Path) -> None:
    codec = replace(CONFIG.codec, theta_source="chunk")
    run = finished_run(tiny_folder, "llama-leak", codec=codec, phases=replace(CONFIG.phases, unplug="never"))
    model = load_language_model(run)
    assert evaluate(run)["as_trained"]["theta_source"] == "chunk"
    tokens = torch.randint(0, 256, (1, 48), generator=torch.Generator().manual_seed(1))
    other = tokens.clone()
    other[0, -1] += 1 if other[0, -1] < 255 else -1
    with torch.no_grad():
        before, after = (model.stock.llama([rows], FullAttention(CONFIG.model))[0] for rows in (tokens, other))
    torch.testing.assert_close(before[:, :-1], after[:, :-1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["plain", "top_k", "quantised"])
def test_other_codecs_leave_a_plain_model(tiny_folder: Path, kind: str) -> None:
    run = finished_run(tiny_folder, f"llama-{kind}", codec=replace(CONFIG.codec, kind=kind))
    record = evaluate(run)
    assert (record["model"], record["codec"]) == ("plain", kind)
    assert ("as_trained" in record) == (kind != "plain")


def test_a_text_of_short_documents_has_no_score_as_trained(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short")
    assert "as_trained" not in evaluate(tiny_llama, on=tmp_path / "a.txt")


# --- mistakes -------------------------------------------------------------------------------------------------------


def test_a_run_without_a_checkpoint(tiny_llama: Path, tmp_path: Path) -> None:
    run = shutil.copytree(tiny_llama, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint yet"):
        evaluate(run)


def test_a_damaged_checkpoint(tiny_llama: Path, tmp_path: Path) -> None:
    run = shutil.copytree(tiny_llama, tmp_path / "run")
    newest = checkpoint_files(run)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(UserError, match="truncated or altered"):
        evaluate(run)


def test_a_checkpoint_of_another_configuration(tiny_llama: Path, tmp_path: Path) -> None:
    run = shutil.copytree(tiny_llama, tmp_path / "run")
    config = (run / "config.json").read_text()
    assert '"layers": 2' in config
    (run / "config.json").write_text(config.replace('"layers": 2', '"layers": 3'))
    with pytest.raises(UserError, match="does not fit the run's configuration"):
        evaluate(run)


def test_a_missing_tokenizer(tiny_token_llama: Path, tmp_path: Path) -> None:
    run = shutil.copytree(tiny_token_llama, tmp_path / "run")
    (run / "tokenizer" / "merges.txt").unlink()
    with pytest.raises(UserError, match="tokenizer is missing"):
        evaluate(run)


def test_a_tokenizer_of_another_model(tiny_token_llama: Path, tmp_path: Path) -> None:
    run = shutil.copytree(tiny_token_llama, tmp_path / "run")
    vocabulary, merges = run / "tokenizer" / "vocab.json", run / "tokenizer" / "merges.txt"
    lines = merges.read_text().splitlines()
    gone = lines.pop().replace(" ", "")
    merges.write_text("\n".join(lines) + "\n")
    tokens = sorted(json.loads(vocabulary.read_text()).items(), key=lambda item: item[1])
    kept = [token for token, _ in tokens if token != gone]
    vocabulary.write_text(json.dumps({token: number for number, token in enumerate(kept)}))
    with pytest.raises(UserError, match="the tokenizer has 299 tokens, the model 300"):
        evaluate(run)


def test_a_data_folder_of_another_tokenizer(tiny_llama: Path, tiny_folder: Path) -> None:
    with pytest.raises(UserError, match="another tokenizer"):
        evaluate(tiny_llama, on=tiny_subspaces.token_data(tiny_folder))


def test_a_text_without_a_byte(tiny_llama: Path, tmp_path: Path) -> None:
    text = tmp_path / "records.jsonl"
    text.write_text('{"text": ""}\n')
    with pytest.raises(UserError) as caught:
        evaluate(tiny_llama, on=text)
    assert "records.jsonl" in caught.value.where


def test_threads_are_given_back(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, during = torch.get_num_threads(), []

    def fail(*_: object, **__: object) -> None:
        during.append(torch.get_num_threads())
        raise UserError("stop", where="here", fix="none")

    monkeypatch.setattr(scoring, "score_windows", fail)
    with pytest.raises(UserError, match="stop"):
        evaluate(tiny_llama, threads=before + 1)
    assert (during, torch.get_num_threads()) == ([before + 1], before)
