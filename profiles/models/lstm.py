"""An LSTM language model on bytes (the recurrent kind of arXiv:1708.02182): embedding, LSTM layers, scores.

It reads a text byte by byte, as the GPT beside it does, and predicts the next byte.

Shapes: B micro-batch, T context, D width, V vocabulary.
"""

# ruff: noqa: N803  # tensor names carry their shape

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from pipesched.profiles import ProfileError
from pipesched.profiles.models.model import Model
from pipesched.profiles.models.text_data import held_out_next_bytes, next_byte_loss, next_bytes


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
    _check(name, layers, width, context, vocab, dropout)
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


def _check(name: str, layers: int, width: int, context: int, vocab: int, dropout: float) -> None:
    for key, got, least, most in (
        ("layers", layers, 1, 10_000),
        ("width", width, 1, 2**16),
        ("context", context, 1, 2**14),
        ("vocab", vocab, 256, 2**20),
    ):
        if not least <= got <= most:
            raise ProfileError(f"model {name}: {key}: got {got}, expected {least} to {most}; try {least}")
    if not 0.0 <= dropout < 1.0:
        raise ProfileError(f"model {name}: dropout: got {dropout}, expected 0 <= dropout < 1; try 0.1")


class Recurrent(nn.Module):
    """One LSTM; its states at all times are the output."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.dropout = dropout

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        states_BTD: Tensor = self.lstm(_dropped(x_BTD, self.dropout, self.training))[0]
        return states_BTD


class LstmHead(nn.Module):
    """Scores of the next byte."""

    def __init__(self, width: int, vocab: int, dropout: float) -> None:
        super().__init__()
        self.scores = nn.Linear(width, vocab)
        self.dropout = dropout

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, V)."""
        scores_BTV: Tensor = self.scores(_dropped(x_BTD, self.dropout, self.training))
        return scores_BTV


def _dropped(x: Tensor, probability: float, training: bool) -> Tensor:
    return functional.dropout(x, probability, training) if probability else x
