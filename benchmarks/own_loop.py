"""A step of `pipesched.Pipeline` beside a step of torch.distributed.pipelining, on the same module, in turns.

A step is forward, backward, and the optimizer's update of one batch; it ends when the slower of two gloo processes has
ended. PyTorch gets the module cut by its own tracer, and cut by hand. `pipesched` also returns the loss of the batch in
both processes.

    python benchmarks/own_loop.py [--steps 30] [--out benchmarks/results/own_loop.md]
"""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from rank_group import show_as_pair
from report import arguments_of, provenance
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, SplitPoint, pipeline
from torch.nn import functional

import pipesched
from pipesched.profiles.measuring import SHORT_COUNT, yardstick_s

NUM_MICROBATCHES = 8
SIZES = {"small": (64, 2, 16), "medium": (128, 2, 64), "large": (256, 2, 128)}
"""Name -> (width, sequences in a micro-batch, tokens of a sequence) of a GPT of 8 blocks."""
BLOCKS, TOKENS = 8, 256
_WARMUP = 3


class Gpt(nn.Module):
    """A GPT of PyTorch's own blocks."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(BLOCKS)
        )
        self.head = nn.Linear(width, TOKENS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next token at every position."""
        return self.run(tokens, 0, BLOCKS)

    def run(self, hidden: Tensor, first: int, last: int) -> Tensor:
        """Run blocks `first` to `last` - 1, with the embedding before block 0 and the head behind the last."""
        if first == 0:
            hidden = self.embedding(hidden) + self.positions
        for block in self.blocks[first:last]:
            hidden = block(hidden, src_mask=self.mask)
        return self.head(hidden) if last == BLOCKS else hidden


class Half(nn.Module):
    """The first or the second half of a GPT, as one cuts it by hand."""

    def __init__(self, module: Gpt, index: int) -> None:
        super().__init__()
        self._first, self._last = (0, BLOCKS // 2) if index == 0 else (BLOCKS // 2, BLOCKS)
        self.module = copy.deepcopy(module)
        unused = [self.module.head] if index == 0 else [self.module.embedding]
        blocks = self.module.blocks[BLOCKS // 2 :] if index == 0 else self.module.blocks[: BLOCKS // 2]
        for part in (*unused, *blocks):
            part.requires_grad_(requires_grad=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Run the half."""
        return self.module.run(hidden, self._first, self._last)


def loss(scores: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean cross entropy."""
    return functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Return the optimizer of both."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def traced_stage(module: Gpt, x: Tensor) -> Any:
    """Return this process' stage, cut by PyTorch's tracer."""
    cut = {f"blocks.{BLOCKS // 2}": SplitPoint.BEGINNING}
    traced = pipeline(module, mb_args=(x[: len(x) // NUM_MICROBATCHES],), split_spec=cut)
    return traced.build_stage(dist.get_rank(), torch.device("cpu"))


def hand_cut_stage(module: Gpt) -> Any:
    """Return this process' stage, cut by hand."""
    return PipelineStage(Half(module, dist.get_rank()), dist.get_rank(), 2, torch.device("cpu"))


def their_step(stage: Any, x: Tensor, y: Tensor) -> Callable[[], float | None]:
    """Return a step of torch.distributed.pipelining; it returns the loss in the last process."""
    schedule = Schedule1F1B(stage, NUM_MICROBATCHES, loss_fn=loss)
    optimizer = sgd([parameter for parameter in stage.submod.parameters() if parameter.requires_grad])

    def step() -> float | None:
        losses: list[Tensor] = []
        if dist.get_rank() == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().item() if losses else None

    return step


def our_step(module: nn.Module, x: Tensor, y: Tensor) -> tuple[pipesched.Pipeline, Callable[[], float]]:
    """Return a pipeline and its step."""
    pipe = pipesched.Pipeline(
        module, schedule="1f1b", num_ranks=2, microbatches=NUM_MICROBATCHES, loss=loss, optimizer=sgd,
        example=x[: len(x) // NUM_MICROBATCHES], partition=f"{1 + BLOCKS // 2},{1 + BLOCKS // 2}",
    )  # fmt: skip
    return pipe, lambda: pipe.step(x, y).item()


def timed(step: Callable[[], object]) -> float:
    """Return the time until both processes have ended a step that they begin together [s]."""
    dist.barrier()
    begun_s = time.perf_counter()
    step()
    took_s = torch.tensor(time.perf_counter() - begun_s, dtype=torch.float64)
    dist.all_reduce(took_s, dist.ReduceOp.MAX)
    return took_s.item()


def measure(steps: int) -> list[dict[str, Any]]:
    """Measure every size under 1F1B; the three take turns, step by step."""
    rows = []
    for label, (width, sequences, length) in SIZES.items():
        torch.manual_seed(0)
        module = Gpt(width, length)
        x = torch.randint(0, TOKENS, (NUM_MICROBATCHES * sequences, length))
        steps_of: dict[str, Callable[[], float | None]] = {
            "hand": their_step(hand_cut_stage(module), x, x),
            "traced": their_step(traced_stage(module, x), x, x),
        }
        pipe, steps_of["pipesched"] = our_step(module, x, x)
        with pipe:
            speeds = [yardstick_s(1, torch.device("cpu"), SHORT_COUNT)]
            losses = [[step() for step in steps_of.values()] for _ in range(_WARMUP)]
            times: dict[str, list[float]] = {kind: [] for kind in steps_of}
            for turn in range(steps):
                for kind in sorted(steps_of, key=lambda kind: (list(steps_of).index(kind) + turn) % len(steps_of)):
                    times[kind].append(timed(steps_of[kind]))
            speeds.append(yardstick_s(1, torch.device("cpu"), SHORT_COUNT))
        for step_losses in losses if dist.get_rank() else ():
            known = [value for value in step_losses if value is not None]
            assert max(known) - min(known) < 1e-5 * max(known), losses
        rows.append({"size": label, "drift": speeds[1] / speeds[0] - 1, **times})
    return rows


def report(steps: int, origin: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the page; `origin` is the provenance."""
    rows = measure(steps)
    yield "# A step in your own loop"
    yield ""
    yield from origin
    yield ""
    yield f"Two gloo processes of one thread on a core each, {NUM_MICROBATCHES} micro-batches, 1F1B. A step has"
    yield "forward, backward and the optimizer's update. Ratio: step of `Pipeline` / step of"
    yield "`torch.distributed.pipelining`, turn by turn, median and quartiles."
    yield "Drift: the machine's time for one kernel, after the row against before."
    yield ""
    yield "| GPT | Pipeline | torch, traced | torch, cut by hand | ratio, traced | ratio, by hand | drift |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        times = [f"{statistics.median(row[kind]) * 1e3:.1f} ms" for kind in ("pipesched", "traced", "hand")]
        ratios = [_ratio(row["pipesched"], row[kind]) for kind in ("traced", "hand")]
        yield f"| {row['size']} | {' | '.join(times + ratios)} | {row['drift']:+.1%} |"
    yield ""
    for label, (width, sequences, length) in SIZES.items():
        yield f"* {label}: width {width}, {BLOCKS} blocks, micro-batches of {sequences} sequences of {length} tokens"


def _ratio(ours_s: Sequence[float], theirs_s: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles([a / b for a, b in zip(ours_s, theirs_s, strict=True)], n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    command = f"own_loop.py --steps {arguments.steps}"
    origin = [*provenance(command, os.getloadavg()[0], "in turns")]  # counts all cores
    show_as_pair(report(arguments.steps, origin), arguments.out)


if __name__ == "__main__":
    main()
