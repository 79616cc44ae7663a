"""The efficiency of the matrix products of a transformer block, by shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from gpu_rows.card import Card, timed_s
from gpu_rows.row import Row

WIDTHS, TOKENS, CONTEXT, HEAD = (1024, 2048, 4096, 8192), 8192, 2048, 128
"""Widths of the blocks, tokens of a micro-batch, tokens of a sample, and width of a head."""
LONG_S = 0.02
"""Time for which a product is repeated [s]."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product of matrices, or one product per head and sample.

    Attributes:
        what: Its place in the block.
        width: Width of the block.
        count: Matrices.
        m: Rows of the first matrix.
        k: Columns of the first matrix.
        n: Columns of the second matrix.
    """

    what: str
    width: int
    count: int
    m: int
    k: int
    n: int

    def __str__(self) -> str:
        many = f"{self.count} x " if self.count > 1 else ""
        return f"{self.width} | {self.what} | {many}({self.m}, {self.k}) ({self.k}, {self.n})"

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.count * self.m * self.k * self.n


def products(width: int, tokens: int, context: int, head: int) -> list[Product]:
    """Return the products of the forward of one block."""
    heads = tokens // context * (width // head)
    return [
        Product("queries, keys, values", width, 1, tokens, width, 3 * width),
        Product("scores", width, heads, context, head, context),
        Product("mixture", width, heads, context, context, head),
        Product("projection", width, 1, tokens, width, width),
        Product("up", width, 1, tokens, width, 4 * width),
        Product("down", width, 1, tokens, 4 * width, width),
    ]


def lines(card: Card) -> Iterator[str]:
    """Yield the lines of this row's section."""
    tokens, context = card.pick(TOKENS, 64), card.pick(CONTEXT, 32)
    widths, head = card.pick(WIDTHS, (64, 128)), card.pick(HEAD, 32)
    yield f"bfloat16, {tokens} tokens, contexts of {context}, heads of {head}; products alone, one behind the other."
    yield ""
    yield "| width | product | shapes | time | TFLOP/s |"
    yield "|---|---|---|---|---|"
    cases = [product for width in widths for product in products(width, tokens, context, head)]
    yield from card.rows(cases, partial(_row, card), 1.0)


def _row(card: Card, product: Product) -> str:
    make = partial(torch.randn, dtype=torch.bfloat16, device=card.device)
    a, b = make(product.count, product.m, product.k), make(product.count, product.k, product.n)
    multiply = partial(torch.bmm, a, b) if product.count > 1 else partial(torch.mm, a[0], b[0])
    once_s = timed_s(card, multiply, 2)
    seconds = timed_s(card, multiply, max(2, int(LONG_S / once_s)))
    return f"| {product} | {seconds * 1e6:.1f} us | {product.flops / seconds / 1e12:.3g} |"


ROW = Row("Efficiency by matrix shape", "figures for estimates of costs", 40.0, lines)
