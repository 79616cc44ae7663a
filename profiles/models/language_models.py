"""Language models on bytes: a GPT (GPT-2's shape: pre-norm, GELU, learned positions), and an LSTM (arXiv:1708.02182).

Shapes: B micro-batch, T context, D width, H heads, V vocabulary.
"""

# ruff: noqa: N803  # tensor names carry their shape

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipesched.profiles.io import model_shape
from pipesched.profiles.models.model import Model, require_dropout, require_range
from pipesched.profiles.models.text_data import held_out_next_bytes, next_byte_loss, next_bytes


def gpt(
    layers: int = 8,
    width: int = 320,
    heads: int = 8,
    context: int = 128,
    vocab: int = 256,
    dropout: float = 0.0,
    text: str = "",
) -> Model:
    """Return a GPT with `layers` blocks; about 12 x layers x width^2 parameters, ten million by default.

    The model predicts the next byte of a text.

    Args:
        layers: Blocks, besides the embedding and the head.
        width: Width of the activations between layers.
        heads: Number of attention heads.
        context: Bytes of a sample.
        vocab: Number of tokens; bytes use the first 256.
        dropout: Dropout probability.
        text: Training text file; empty for Python's help topics.

    Raises:
        ProfileError: The arguments do not fit together.
    """
    numbers = f"gpt:layers={layers},width={width},heads={heads},context={context},vocab={vocab}"
    name = f"{numbers},dropout={dropout}" + (f",text={text}" if text else "")
    model_shape(numbers)  # refuses numbers that do not fit together
    require_range(name, "vocab", vocab, 256, 2**31 - 1)
    require_range(name, "context", context, 1, 2**14)  # the text has no longer samples
    require_dropout(name, dropout)
    blocks = tuple(partial(TransformerBlock, width, heads, dropout, layers) for _ in range(layers))
    return Model(
        name,
        (partial(Embedding, vocab, context, width, dropout), *blocks, partial(GptHead, width, vocab)),
        ("embedding", *(f"block {i}" for i in range(layers)), "head"),
        next_byte_loss,
        partial(next_bytes, context, text),
        partial(held_out_next_bytes, context, text),
    )


class Embedding(nn.Module):
    """The sum of a token embedding and a position embedding."""

    def __init__(self, vocab: int, context: int, width: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Parameter(torch.empty(context, width))
        self.dropout = dropout
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Map (B, T) int64 to (B, T, D)."""
        x_BTD: Tensor = self.token(tokens_BT) + self.position[: tokens_BT.shape[1]]
        return _dropout(x_BTD, self.dropout, self.training)


class TransformerBlock(nn.Module):
    """Attention, then an MLP, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float, num_blocks: int) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        for linear in (self.qkv, self.project, self.widen, self.narrow):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        for linear in (self.project, self.narrow):  # GPT-2, section 2.3: the residual sum keeps its variance
            nn.init.normal_(linear.weight, std=0.02 / (2 * num_blocks) ** 0.5)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        x_BTD = x_BTD + _dropout(self.project(self._attend(self.norm_attention(x_BTD))), self.dropout, self.training)
        hidden = functional.gelu(self.widen(self.norm_mlp(x_BTD)))
        return x_BTD + _dropout(self.narrow(hidden), self.dropout, self.training)

    def _attend(self, x_BTD: Tensor) -> Tensor:
        q_BHTd, k_BHTd, v_BHTd = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x_BTD).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        mixed_BHTd = functional.scaled_dot_product_attention(q_BHTd, k_BHTd, v_BHTd, is_causal=True, dropout_p=dropout)
        return mixed_BHTd.transpose(1, 2).flatten(2)


class GptHead(nn.Module):
    """Final norm and scores of the next token."""

    def __init__(self, width: int, vocab: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, vocab, bias=False)
        nn.init.normal_(self.scores.weight, std=0.02)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, V)."""
        scores_BTV: Tensor = self.scores(self.norm(x_BTD))
        return scores_BTV


def lstm(
    layers: int = 4, width: int = 256, context: int = 64, vocab: int = 256, dropout: float = 0.0, text: str = ""
) -> Model:
    """Return a language model of `layers` LSTMs; about 8 x layers x width^2 parameters, two million by default.

    Args:
        layers: LSTMs, besides the embedding and the head.
        width: Width of the state, and of the activations between layers.
        context: Bytes of a sample; every sample begins with an empty state.
        vocab: Number of tokens; bytes use the first 256.
        dropout: Dropout probability of a layer's input.
        text: Training text file; empty for Python's help topics.

    Raises:
        ProfileError: The arguments do not fit together.
    """
    name = f"lstm:layers={layers},width={width},context={context},vocab={vocab},dropout={dropout}"
    name += f",text={text}" if text else ""
    require_range(name, "layers", layers, 1, 10_000)
    require_range(name, "width", width, 1, 2**16)
    require_range(name, "context", context, 1, 2**14)
    require_range(name, "vocab", vocab, 256, 2**20)
    require_dropout(name, dropout)
    return Model(
        name,
        (
            partial(nn.Embedding, vocab, width),
            *(partial(Recurrent, width, dropout) for _ in range(layers)),
            partial(LstmHead, width, vocab, dropout),
        ),
        ("embedding", *(f"lstm {i}" for i in range(layers)), "head"),
        next_byte_loss,
        partial(next_bytes, context, text),
        partial(held_out_next_bytes, context, text),
    )


class Recurrent(nn.Module):
    """One LSTM layer; the output is its state at every position."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.dropout = dropout

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        states_BTD: Tensor = self.lstm(_dropout(x_BTD, self.dropout, self.training))[0]
        return states_BTD


class LstmHead(nn.Module):
    """Scores of the next byte."""

    def __init__(self, width: int, vocab: int, dropout: float) -> None:
        super().__init__()
        self.scores = nn.Linear(width, vocab)
        self.dropout = dropout

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, V)."""
        scores_BTV: Tensor = self.scores(_dropout(x_BTD, self.dropout, self.training))
        return scores_BTV


def _dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    return functional.dropout(x, probability, training) if probability else x
