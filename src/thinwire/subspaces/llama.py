"""What does the model compute?  A Llama-3 style decoder whose attention is given to it (section 5.1).

Weights carry the names and shapes of Hugging Face's ``LlamaForCausalLM``, so that export renames nothing.  Several
streams (independent micro-batches) walk through the layers side by side: one's exchange of keys and values hides behind
the other's compute, forward here and backward by autograd, which runs the newest node first.

Letters: b batch, t local tokens, d width, h hidden.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from thinwire.base.seeds import numpy_generator
from thinwire.subspaces.config import LlamaConfig

INITIAL_DEVIATION = 0.02


@runtime_checkable
class Attend(Protocol):
    """How queries meet keys: ``begin`` starts what must travel, ``finish`` waits for it and attends."""

    def begin(self, layer: int, stream: int, *, hidden: Tensor, key: Tensor, value: Tensor) -> Any:
        """
        Args:
            hidden: [b, t, d], the normed input of the layer's projections.
            key, value: [kv_width, d], the projections' weights.
        """
        ...

    def finish(self, begun: Any, *, query: Tensor) -> Tensor:
        """[b, t, heads * head_width], softmax-weighted values of all tokens up to each query's own.

        Args:
            begun: what ``begin`` returned.
            query: [b, t, heads * head_width], before RoPE.
        """
        ...


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * weight, the mean in at least single precision."""

    def __init__(self, width: int, *, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
        return functional.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.epsilon)


class SelfAttention(nn.Module):
    """The four projections; the rest is ``Attend``'s."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        query_width = config.heads * config.head_width
        self.q_proj = nn.Linear(config.width, query_width, bias=False)
        self.k_proj = nn.Linear(config.width, config.kv_width, bias=False)
        self.v_proj = nn.Linear(config.width, config.kv_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.width, bias=False)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.hidden, bias=False)
        self.up_proj = nn.Linear(config.width, config.hidden, bias=False)
        self.down_proj = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Begun(NamedTuple):
    """A layer between its two halves."""

    exchange: Any
    query: Tensor


class Block(nn.Module):
    """Pre-norm attention and SwiGLU, each added to the residual stream."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, epsilon=config.norm_epsilon)
        self.self_attn = SelfAttention(config)
        self.post_attention_layernorm = RMSNorm(config.width, epsilon=config.norm_epsilon)
        self.mlp = SwiGLU(config)

    def begin(self, x: Tensor, attend: Attend, *, layer: int, stream: int) -> Begun:
        hidden, own = self.input_layernorm(x), self.self_attn
        # Keys and values before the query: what travels leaves first, and the query's product hides a part of it.
        exchange = attend.begin(layer, stream, hidden=hidden, key=own.k_proj.weight, value=own.v_proj.weight)
        return Begun(exchange, own.q_proj(hidden))

    def finish(self, x: Tensor, attend: Attend, begun: Begun) -> Tensor:
        x = x + self.self_attn.o_proj(attend.finish(begun.exchange, query=begun.query))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, blocks and the last norm (Hugging Face's ``model.``)."""

    def __init__(self, config: LlamaConfig, *, vocab_size: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, epsilon=config.norm_epsilon)


class Llama(nn.Module):
    """A decoder-only model; ``forward`` gives logits, ``loss`` the summed cross entropy of each stream."""

    def __init__(self, config: LlamaConfig, *, vocab_size: int) -> None:
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.model = Decoder(config, vocab_size=vocab_size)
        self.lm_head = nn.Linear(config.width, vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def hidden(self, streams: Sequence[Int[Tensor, "b t"]], attend: Attend) -> list[Float[Tensor, "b t d"]]:
        """The last norm's output of every stream."""
        rows = [self.model.embed_tokens(tokens) for tokens in streams]
        blocks = [block for block in self.model.layers if isinstance(block, Block)]
        begun = [blocks[0].begin(x, attend, layer=0, stream=stream) for stream, x in enumerate(rows)]
        for layer, block in enumerate(blocks):
            for stream in range(len(rows)):
                rows[stream] = block.finish(rows[stream], attend, begun[stream])
                if layer + 1 < len(blocks):
                    following = blocks[layer + 1]
                    begun[stream] = following.begin(rows[stream], attend, layer=layer + 1, stream=stream)
        return [self.model.norm(x) for x in rows]

    def forward(self, streams: Sequence[Int[Tensor, "b t"]], attend: Attend) -> list[Float[Tensor, "b t vocab"]]:
        return [self.lm_head(x) for x in self.hidden(streams, attend)]

    def loss(
        self, streams: Sequence[Int[Tensor, "b t"]], targets: Sequence[Int[Tensor, "b t"]], attend: Attend
    ) -> list[Float[Tensor, ""]]:
        """Summed cross entropy of every stream's local targets, in nats."""
        return [
            summed_cross_entropy(logits, target) for logits, target in zip(self(streams, attend), targets, strict=True)
        ]


def summed_cross_entropy(logits: Float[Tensor, "b t vocab"], targets: Int[Tensor, "b t"]) -> Float[Tensor, ""]:
    """In nats; computed in at least single precision."""
    rows = logits.flatten(0, 1)
    rows = rows.float() if rows.dtype in (torch.bfloat16, torch.float16) else rows
    return functional.cross_entropy(rows, targets.flatten(), reduction="sum")


def initialise(model: Llama, *, seed: int) -> None:
    """Draw the first weights, the same on every rank.

    choice: normal with deviation 0.02, and 0.02 / sqrt(2 layers) for the projections that end in the residual stream
    (GPT-2's scheme); the paper names Llama 3, whose report is silent.
    """
    generator = numpy_generator(seed, "llama-weights")
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue  # gains stay one
        ends_in_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
        deviation = INITIAL_DEVIATION / math.sqrt(2 * model.config.layers) if ends_in_stream else INITIAL_DEVIATION
        drawn = generator.standard_normal(tuple(parameter.shape)) * deviation
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(drawn))


def rope_angles(
    positions: Int[Tensor, " t"], *, head_width: int, base: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "t w"], Float[Tensor, "t w"]]:
    """Cosines and sines of RoPE, half-split as in Hugging Face's Llama; angles in FP64, exact far out."""
    pairs = torch.arange(0, head_width, 2, dtype=torch.float64, device=positions.device)
    angles = positions.double()[:, None] * base ** (-pairs / head_width)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return torch.cat([cos, cos], dim=-1), torch.cat([sin, sin], dim=-1)


def apply_rope(x: Float[Tensor, "b heads t w"], cos: Float[Tensor, "t w"], sin: Float[Tensor, "t w"]) -> Tensor:
    """Turn the pairs (i, i + w/2) of every head by the positions' angles."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin
