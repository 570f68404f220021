"""Does an exported folder load in ``transformers`` as a stock Llama with the same logits, and is it whole or absent?"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from thinwire.base.errors import UserError
from thinwire.base.files import sha256_file
from thinwire.subspaces import export as export_module
from thinwire.subspaces import full_attention
from thinwire.subspaces.config import LlamaConfig, SubspacesConfig
from thinwire.subspaces.export import WEIGHTS, export, llama_config
from thinwire.subspaces.full_attention import FullAttention
from thinwire.subspaces.generate import generate
from thinwire.subspaces.language_model import LanguageModel, load_language_model
from tiny_subspaces import CONFIG, checkpoint_files, finished_run, untrained_run

PLAIN = LlamaConfig(layers=2, width=24, heads=4, kv_heads=4, head_width=6, hidden=40)
SHAPES = {
    "tied": PLAIN,
    "untied": replace(PLAIN, tied=False),
    "grouped queries": replace(PLAIN, kv_heads=2),
    "one key head": replace(PLAIN, kv_heads=1, tied=False),
    "wide heads": replace(PLAIN, head_width=16, kv_heads=2),
    "narrow heads": replace(PLAIN, head_width=2),
    "another rope base": replace(PLAIN, rope_base=100.0),
    "another epsilon": replace(PLAIN, norm_epsilon=0.1),
}


def with_model(model: LlamaConfig) -> SubspacesConfig:
    return replace(CONFIG, model=model, codec=replace(CONFIG.codec, group=2))


def theirs(folder: Path) -> Any:
    """As anyone loads it; nothing may be missing or left over."""
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert not any(info.values()), info
    assert model.dtype == torch.float32
    return model


def assert_equal_logits(folder: Path, model: LanguageModel, *, tokens: int = 48) -> None:
    """Over a whole context, in FP32."""
    rows = torch.randint(0, model.stock.llama.vocab_size, (2, tokens), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = theirs(folder)(rows).logits
        (expected,) = model.stock.llama([rows], FullAttention(model.stock.config.model))
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_equal_for_every_shape(tiny_data: Path, tmp_path: Path, shape: str) -> None:
    run = untrained_run(with_model(SHAPES[shape]), data=tiny_data, out=tmp_path / "run")
    export(run, out=tmp_path / "out")
    assert_equal_logits(tmp_path / "out", load_language_model(run))
    names = load_file(tmp_path / "out" / WEIGHTS).keys()
    assert ("lm_head.weight" in names) != SHAPES[shape].tied


def test_far_out_only_the_rounding_of_the_angles_differs(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With angles in FP32, as transformers has them, logits are equal at 2,048 positions too."""

    def single(positions: Any, *, head_width: int, base: float, dtype: torch.dtype) -> tuple[Any, Any]:
        inverse = 1.0 / base ** (torch.arange(0, head_width, 2).float() / head_width)
        angles = positions.float()[:, None] * inverse
        doubled = torch.cat([angles, angles], dim=-1)
        return doubled.cos().to(dtype), doubled.sin().to(dtype)

    config = with_model(PLAIN)
    run = untrained_run(config, data=tiny_data, out=tmp_path / "run")
    export(run, out=tmp_path / "out")
    monkeypatch.setattr(full_attention, "rope_angles", single)
    assert_equal_logits(tmp_path / "out", load_language_model(run), tokens=2048)


def test_logits_of_a_folded_run_are_equal(tiny_llama: Path, tmp_path: Path) -> None:
    done = export(tiny_llama, out=tmp_path / "out")
    assert (done.model, done.phase, done.step, done.planned_steps) == ("folded", "folded", 12, 12)
    assert_equal_logits(tmp_path / "out", load_language_model(tiny_llama))


def test_logits_of_an_unfinished_compressed_run_are_equal(tiny_folder: Path, tmp_path: Path) -> None:
    run = finished_run(tiny_folder, "llama-compressed", phases=replace(CONFIG.phases, unplug="never"))
    done = export(run, out=tmp_path / "out")
    assert (done.model, done.phase) == ("folded", "compressed")
    assert_equal_logits(tmp_path / "out", load_language_model(run))


def test_their_greedy_text_is_ours(tiny_llama: Path, tmp_path: Path) -> None:
    export(tiny_llama, out=tmp_path / "out")
    prompt = b"harbour anchor"
    ours = generate(load_language_model(tiny_llama), prompt, num_bytes=20, temperature=0.0).text
    written = theirs(tmp_path / "out").generate(torch.tensor([list(prompt)]), max_new_tokens=20)
    assert bytes(written[0, len(prompt) :].tolist()) == ours


def test_byte_pairs_load_as_a_tokenizer(tiny_token_llama: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    export(tiny_token_llama, out=tmp_path / "out")
    model = load_language_model(tiny_token_llama)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in ("the harbour and the anchor, 'tis we've seen", " two  spaces\n\n\ttab", "café – 東京 🚢", ""):
        tokens = loaded(text).input_ids
        assert tokens == model.tokenizer.encode(text).tolist()
        assert loaded.decode(tokens) == text
    end = model.tokenizer.end_token
    assert (loaded.eos_token_id, loaded.bos_token_id, len(loaded)) == (end, end, model.tokenizer.vocab_size)
    assert loaded.model_max_length == 48
    assert_equal_logits(tmp_path / "out", model)


def test_config_is_what_transformers_4_and_5_read(tiny_llama: Path, tmp_path: Path) -> None:
    export(tiny_llama, out=tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == llama_config(load_language_model(tiny_llama))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == CONFIG.model.rope_base
    assert (config["head_dim"], config["num_key_value_heads"]) == (8, 2)
    assert (config["vocab_size"], config["max_position_embeddings"]) == (256, 48)
    loaded = theirs(tmp_path / "out").config
    assert (loaded.head_dim, loaded.num_key_value_heads, loaded.tie_word_embeddings) == (8, 2, True)
    assert (loaded.bos_token_id, loaded.eos_token_id) == (0, 0)


def test_the_folder_tells_what_it_is_and_nothing_of_the_machine(tiny_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = export(tiny_llama, out=out)
    record = json.loads((out / "thinwire.json").read_text())
    assert record["sha256"] == {name: sha256_file(out / name) for name in done.files if name != "thinwire.json"}
    assert (record["step"], record["phase"], record["preset"]) == (12, "folded", "subspaces-small")
    assert record["config"]["model"]["width"] == 24
    assert done.num_bytes == sum(path.stat().st_size for path in out.iterdir())
    for path in out.iterdir():
        assert str(tmp_path.parent).encode() not in path.read_bytes()
    assert "Tokens are bytes" in (out / "README.md").read_text()
    assert not (out / "tokenizer_config.json").exists()


def test_an_older_checkpoint_can_be_exported(tiny_llama: Path, tmp_path: Path) -> None:
    steps = [int(path.stem) for path in checkpoint_files(tiny_llama)]
    done = export(tiny_llama, out=tmp_path / "out", step=steps[0])
    assert done.step == steps[0] < 12


def test_an_empty_folder_is_filled_and_a_full_one_refused(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    export(tiny_llama, out=tmp_path / "empty")
    before = {path.name: path.read_bytes() for path in (tmp_path / "empty").iterdir()}
    with pytest.raises(UserError, match="holds something"):
        export(tiny_llama, out=tmp_path / "empty")
    assert {path.name: path.read_bytes() for path in (tmp_path / "empty").iterdir()} == before
    (tmp_path / "file").touch()
    with pytest.raises(UserError):
        export(tiny_llama, out=tmp_path / "file")


def test_a_failure_half_way_leaves_nothing(tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_module, "tensors_as_bytes", lambda *_, **__: fail())
    with pytest.raises(OSError, match="No space"):
        export(tiny_llama, out=tmp_path / "folder" / "out")
    assert not (tmp_path / "folder" / "out").exists()
    assert not [path for path in (tmp_path / "folder").iterdir() if path.is_dir()]


def test_a_shape_that_their_llama_cannot_have(tiny_data: Path, tmp_path: Path) -> None:
    shape = LlamaConfig(layers=1, width=24, heads=5, kv_heads=5, head_width=4, hidden=8)
    run = untrained_run(with_model(shape), data=tiny_data, out=tmp_path / "run")
    with pytest.raises(UserError, match="multiple of the heads"):
        export(run, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_run_writes_nothing(tiny_llama: Path, tmp_path: Path) -> None:
    run = shutil.copytree(tiny_llama, tmp_path / "run")
    newest = checkpoint_files(run)[-1]
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.raises(UserError, match="truncated or altered"):
        export(run, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
