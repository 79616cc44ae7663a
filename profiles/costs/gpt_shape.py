"""The shape of a GPT, which is all that its costs follow from."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pipesched.profiles import ProfileError


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
            ProfileError: A number is below 1, there are too many layers, or the heads do not divide the width.
        """
        for field in fields(self):
            got = getattr(self, field.name)
            if got < 1:
                raise ProfileError(f"model {name}: {field.name}: got {got}, expected at least 1; raise it")
        if self.layers > 10_000:
            raise ProfileError(f"model {name}: layers: got {self.layers}, expected at most 10000; lower it")
        if self.width % self.heads:
            raise ProfileError(
                f"model {name}: width: got {self.width}, expected a multiple of heads={self.heads}; "
                f"try width={-(-self.width // self.heads) * self.heads}"
            )
