"""The shape of a GPT, which is all that its costs follow from."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pipesched.profiles import ProfileError

_MOST_LAYERS, _MOST = 10_000, 2**31 - 1
"""Larger numbers are slips of the hand."""


@dataclass(frozen=True, slots=True)
class GptShape:
    """The arguments of the built-in model ``gpt`` that change what it costs.

    Attributes:
        layers: Blocks, beside the embedding and the head.
        width: Width of what passes between layers.
        heads: Number of attention heads.
        context: Tokens of a sample.
        vocab: Different tokens.
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
