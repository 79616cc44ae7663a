"""The cut of a model's blocks into the stages of a pipeline, as trainers cut it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from pipesched.profiles.inside_stage.model_shape import ModelShape
from published_rows.trainers import CutRule


class ImpossibleLayoutError(ValueError):
    """The trainer fails with this layout, whatever the memory."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The cut of a model into stages; the first stage has the embedding.

    Attributes:
        blocks: Number of blocks of each stage.
        head_stage: Stage of the head; a later stage has its loss, or nothing.
    """

    blocks: tuple[int, ...]
    head_stage: int

    def bounds(self) -> list[tuple[int, int]]:
        """Return the half-open range of layers of each stage, of embedding, blocks and head."""
        ends = [1 + blocks for blocks in accumulate(self.blocks)]
        ends[self.head_stage :] = [ends[-1] + 1] * (len(ends) - self.head_stage)
        return list(pairwise((0, *ends)))


def cut_of(shape: ModelShape, num_stages: int, rule: CutRule) -> Cut:
    """Return the cut of a trainer.

    Equal cuts leave the rest of the blocks to the first stages; filled ones give every stage as many as the first,
    until none are left. If blocks, embedding and head together divide evenly,
    embedding and head count as blocks, as Megatron-LM's account_for_embedding_in_pipeline_split does.

    Raises:
        ImpossibleLayoutError: A stage would be empty.
    """
    if rule == "by_cost":
        return _by_cost(shape, num_stages)
    share, rest = divmod(shape.layers, num_stages)
    if num_stages > 1 and rest and rest == num_stages - 2:
        return Cut((share, *[share + 1] * rest, share), num_stages - 1)
    if not share:
        raise ImpossibleLayoutError(f"layers is {shape.layers}; {num_stages} stages would leave some without a block")
    if rule == "filled" and rest:
        return _filled(shape.layers, num_stages)
    return Cut(tuple(share + (index < rest) for index in range(num_stages)), num_stages - 1)


def _filled(layers: int, num_stages: int) -> Cut:
    """Return the cut whose stages are filled in turn; the last one has the head."""
    full = -(-layers // num_stages)
    return Cut(tuple(min(full, max(0, layers - full * index)) for index in range(num_stages)), num_stages - 1)


_MODULES_BEHIND_HEAD = 2
"""nanotron's modules behind the head: a cast to float32, and the loss."""


def _by_cost(shape: ModelShape, num_stages: int) -> Cut:
    """Return nanotron's cut: a stage ends with the module whose sum of costs reaches the stage's share of the total.

    In the source the sum must pass the share. Only the model of 1 B has sums that reach it, 10 and 5 of 20 parts: its
    memory shows 10 and 5 blocks, not 11 and 6, on the first of two and of four stages.

    The cost of a block is the number of its weights, with as many heads of keys as of queries; the cost of the head is
    that of its matrix. Behind the head the sum is the total, so every module gets a stage of its own until stages end.
    If the loss does not reach the last stage, the training fails.
    """
    block = (4 * shape.heads * shape.head_size + 3 * shape.ffn) * shape.hidden
    total = shape.layers * block + shape.vocab * shape.hidden
    counts, stage = [0] * num_stages, 0
    for index in range(1, shape.layers + 1):
        counts[stage] += 1
        if index * block * num_stages >= total * (stage + 1):
            stage += 1
    if stage + _MODULES_BEHIND_HEAD < num_stages - 1:
        raise ImpossibleLayoutError(
            f"pp is {num_stages}; the trainer's cut by cost fills only {stage + 1 + _MODULES_BEHIND_HEAD} stages"
        )
    return Cut(tuple(counts), stage)
