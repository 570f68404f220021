"""Is the model a Llama?  Against one written down here from its equations, weight by weight."""

import math

import pytest
import torch
from torch import Tensor

from thinwire.subspaces.config import LlamaConfig
from thinwire.subspaces.full_attention import FullAttention
from thinwire.subspaces.llama import Llama, RMSNorm, apply_rope, initialise, rope_angles, summed_cross_entropy

CONFIG = LlamaConfig(layers=2, width=12, heads=4, kv_heads=2, head_width=6, hidden=20, rope_base=100.0, tied=False)


def made(config: LlamaConfig = CONFIG) -> Llama:
    model = Llama(config, vocab_size=11).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def tokens(count: int = 9, batch: int = 2) -> Tensor:
    return torch.randint(0, 11, (batch, count), generator=torch.Generator().manual_seed(1))


def by_equations(weights: dict[str, Tensor], rows: Tensor, config: LlamaConfig) -> Tensor:
    """Logits of one sequence [t], one token at a time."""

    def norm(x: Tensor, name: str) -> Tensor:
        return x / torch.sqrt((x * x).mean() + config.norm_epsilon) * weights[f"model.{name}.weight"]

    def turn(x: Tensor, position: int) -> Tensor:
        half, turned = config.head_width // 2, torch.empty_like(x)
        for i in range(half):
            angle = position * config.rope_base ** (-2 * i / config.head_width)
            c, s = math.cos(angle), math.sin(angle)
            turned[i], turned[i + half] = c * x[i] - s * x[i + half], s * x[i] + c * x[i + half]
        return turned

    stream = [weights["model.embed_tokens.weight"][token] for token in rows]
    for layer in range(config.layers):
        prefix = f"layers.{layer}"
        part = {
            name: weights[f"model.{prefix}.{name}.weight"]
            for name in (
                *(f"self_attn.{letter}_proj" for letter in "qkvo"),
                *(f"mlp.{kind}_proj" for kind in ("gate", "up", "down")),
            )
        }
        normed = [norm(x, f"{prefix}.input_layernorm") for x in stream]
        w, share = config.head_width, config.heads // config.kv_heads
        keys = [(part["self_attn.k_proj"] @ x).split(w) for x in normed]
        values = [(part["self_attn.v_proj"] @ x).split(w) for x in normed]
        for t, x in enumerate(normed):
            outs = []
            for head, query in enumerate((part["self_attn.q_proj"] @ x).split(w)):
                scores = torch.stack(
                    [turn(query, t) @ turn(keys[s][head // share], s) / math.sqrt(w) for s in range(t + 1)]
                )
                shares = scores.exp() / scores.exp().sum()
                outs.append(sum(shares[s] * values[s][head // share] for s in range(t + 1)))
            stream[t] = stream[t] + part["self_attn.o_proj"] @ torch.cat(outs)
        for t, x in enumerate(stream):
            y = norm(x, f"{prefix}.post_attention_layernorm")
            gate = part["mlp.gate_proj"] @ y
            stream[t] = x + part["mlp.down_proj"] @ (gate / (1 + torch.exp(-gate)) * (part["mlp.up_proj"] @ y))
    return torch.stack([weights["lm_head.weight"] @ norm(x, "norm") for x in stream])


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_logits_are_those_of_the_equations(kv_heads: int) -> None:
    config = LlamaConfig(
        layers=2, width=12, heads=4, kv_heads=kv_heads, head_width=6, hidden=20, rope_base=100.0, tied=False
    )
    model, rows = made(config), tokens()
    with torch.no_grad():
        (found,) = model([rows], FullAttention(config))
        for row, logits in zip(rows, found, strict=True):
            wanted = by_equations(dict(model.state_dict()), row, config)
            torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-12)


def test_streams_do_not_mix() -> None:
    model = made()
    one, other = tokens(), tokens().flip(1)
    both = model([one, other], FullAttention(CONFIG))
    assert torch.equal(both[0], model([one], FullAttention(CONFIG))[0])
    assert torch.equal(both[1], model([other], FullAttention(CONFIG))[0])


def test_a_cache_gives_what_the_whole_text_gives() -> None:
    """One call of five tokens, then token by token, then two at once."""
    model, rows = made(), tokens()
    with torch.no_grad():
        (whole,) = model([rows], FullAttention(CONFIG))
        attend = FullAttention(CONFIG, cache={})
        parts = [model([rows[:, a:b]], attend)[0] for a, b in ((0, 5), (5, 6), (6, 7), (7, 9))]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-12)


def test_the_loss_is_the_summed_cross_entropy() -> None:
    model, rows = made(), tokens()
    (loss,) = model.loss([rows[:, :-1]], [rows[:, 1:]], FullAttention(CONFIG))
    (logits,) = model([rows[:, :-1]], FullAttention(CONFIG))
    picked = logits.log_softmax(-1).gather(-1, rows[:, 1:, None])
    torch.testing.assert_close(loss, -picked.sum(), rtol=1e-12, atol=0)
    half = summed_cross_entropy(logits.bfloat16(), rows[:, 1:])
    assert half.dtype == torch.float32
    assert abs(float(half.detach() / loss.detach()) - 1) < 0.02


def test_a_tied_head_is_the_embedding() -> None:
    model = Llama(LlamaConfig(layers=1, width=8, heads=2, kv_heads=2, head_width=4, hidden=8), vocab_size=5)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert len(list(model.parameters())) == len(set(model.parameters())) == 11


def test_rope_depends_on_differences_of_positions_alone() -> None:
    generator = torch.Generator().manual_seed(2)
    query, key = torch.randn(2, 1, 1, 1, 8, generator=generator, dtype=torch.float64)

    def score(q: int, k: int) -> Tensor:
        turned = [
            apply_rope(x, *rope_angles(torch.tensor([position]), head_width=8, base=5e5, dtype=torch.float64))
            for x, position in ((query, q), (key, k))
        ]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(40, 3), score(1_000_040, 1_000_003), rtol=0, atol=1e-8)
    assert abs(float(score(40, 3) - score(41, 3))) > 1e-3


def test_angles_far_out_are_exact_in_single_precision() -> None:
    """In FP32 throughout, the fastest pair of position 10^7 would be off by a good part of a turn."""
    cos, sin = rope_angles(torch.tensor([10_000_001]), head_width=4, base=100.0, dtype=torch.float32)
    assert float(cos[0, 0]) == pytest.approx(math.cos(10_000_001), abs=1e-6)
    assert float(sin[0, 1]) == pytest.approx(math.sin(10_000_001 / 10), abs=1e-6)


def test_norms_keep_half_precision_rows_in_their_type() -> None:
    norm = RMSNorm(8, epsilon=1e-5)
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(3))
    assert norm(x.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(norm(x).pow(2).mean(-1), torch.ones(3), rtol=0, atol=1e-4)


def test_first_weights_follow_from_the_seed() -> None:
    config = LlamaConfig(layers=4, width=64, heads=4, kv_heads=4, head_width=16, hidden=128)
    one, same, other = (Llama(config, vocab_size=50) for _ in range(3))
    for model, seed in ((one, 1), (same, 1), (other, 2)):
        initialise(model, seed=seed)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)
    weights = {name: parameter.detach() for name, parameter in one.named_parameters()}
    assert float(weights["model.layers.0.mlp.up_proj.weight"].std()) == pytest.approx(0.02, rel=0.05)
    ending = weights["model.layers.0.mlp.down_proj.weight"]
    assert float(ending.std()) == pytest.approx(0.02 / math.sqrt(8), rel=0.05)
    assert torch.equal(weights["model.norm.weight"], torch.ones(64))
