"""The shape of a GPT, which determines its costs."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pipesched.profiles import ProfileError

_MOST_LAYERS, _MOST = 10_000, 2**31 - 1
"""Largest number of layers, and largest other number; larger numbers are typing errors."""


@dataclass(frozen=True, slots=True)
class GptShape:
    """The arguments of the built-in model ``gpt`` that change its costs.

    Attributes:
        layers: Blocks, besides the embedding and the head.
        width: Width of the activations between layers.
        heads: Number of attention heads.
        context: Tokens of a sample.
        vocab: Size of the vocabulary.
    """

    layers: int = 8
    width: int = 320
    heads: int = 8
    context: int = 128
    vocab: int = 256

    @property
    def name(self) -> str:
        """The model's name, as `resolve_model` reads it."""
        return "gpt:" + ",".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))

    def require_possible(self, name: str) -> None:
        """Refuse numbers that no GPT has.

        Args:
            name: The model's name, for the message.

        Raises:
            ProfileError: A number is below 1 or too large, or the heads do not divide the width.
        """
        for field in fields(self):
            got = getattr(self, field.name)
            most = _MOST_LAYERS if field.name == "layers" else _MOST
            if got < 1:
                raise ProfileError(f"model {name}: {field.name}: got {got}, expected at least 1; raise it")
            if got > most:
                raise ProfileError(f"model {name}: {field.name}: got {got}, expected at most {most}; lower it")
        if self.width % self.heads:
            raise ProfileError(
                f"model {name}: width: got {self.width}, expected a multiple of heads={self.heads}; "
                f"try width={-(-self.width // self.heads) * self.heads}"
            )
