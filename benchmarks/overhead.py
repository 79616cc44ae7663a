"""Overhead of the executor beside PyTorch's own runtime, on the same stages, in one run, in turns.

The measure is the time of a step divided by the longest path of its own op times: the time of the same ops without
hand-over. There are two gloo processes with one thread each.

    python benchmarks/overhead.py [--steps 30] [--out benchmarks/results/overhead.md]
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from rank_group import show_as_pair
from report import arguments_of, provenance
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from pipesched.executor.core import (
    Batch,
    GradientMean,
    HostClock,
    ModuleStage,
    Rank,
    Recorder,
    StageLists,
    Weights,
    begin,
    execute_rank,
    make_meter,
)
from pipesched.executor.transport import ProcessGroupTransport, RankChannels, TensorShape
from pipesched.profiles.costs import uniform
from pipesched.schedules import Schedule
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Step
from pipesched.schedules.transforms import compute_only
from pipesched.simulator.engine import OpSeconds, simulate_lists

SIZES = {"1-2 ms": (256, 64, 6), "4-8 ms": (512, 64, 8), "50-100 ms": (1024, 256, 12)}
"""Forward to backward of an op -> (width, samples in a micro-batch, layers of a stage)."""
NUM_MICROBATCHES = 8
WARM_UP = 3
"""Steps of each runtime that do not count."""
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
Times = list[tuple[str, float, float]]
"""(op, start, end) of one step on one rank [s]."""


class Chain(nn.Sequential):
    """Linear layers with a ReLU each."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def longest_path_s(schedule: Schedule, durations: dict[str, float]) -> float:
    """Return the makespan of `schedule` without hand-over [s]."""
    lowered = lower(schedule)
    given = [[OpSeconds(work_s=durations.get(str(op), 0.0)) for op in row] for row in lowered.ops]
    return simulate_lists(lowered, uniform(schedule.num_stages, 1.0, 1.0), given=given).makespan_s


class TimedStage(PipelineStage):
    """PyTorch's stage, which records the begin and end of each of its forwards and backwards."""

    def __init__(self, module: nn.Module, rank: int) -> None:
        super().__init__(module, rank, dist.get_world_size(), torch.device("cpu"))
        self.times: Times = []

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        return self._timed("F", fwd_chunk_id, partial(super().forward_one_chunk, fwd_chunk_id, *args, **kwargs))

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        return self._timed("B", bwd_chunk_id, partial(super().backward_one_chunk, bwd_chunk_id, *args, **kwargs))

    def _timed(self, letter: str, microbatch: int, run: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = run()
        self.times.append((f"{self.stage_index}{letter}{microbatch}", start, time.perf_counter()))
        return result


class TheirStep:
    """One step of torch.distributed.pipelining."""

    def __init__(self, rank: int, module: nn.Module, name: str, x: Tensor, y: Tensor) -> None:
        self._stage = TimedStage(module, rank)
        self._schedule: PipelineScheduleSingle = SCHEDULES[name](self._stage, NUM_MICROBATCHES, loss_fn=loss)
        self._rank, self._x, self._y = rank, x, y
        self._run()  # the first step exchanges shapes

    def __call__(self) -> Times:
        self._stage.times = []
        self._run()
        return self._stage.times

    def _run(self) -> None:
        if self._rank == 0:
            self._schedule.step(self._x)
        else:
            self._schedule.step(target=self._y, losses=[])


class OurStep:
    """One run of the op lists by our executor."""

    def __init__(self, rank: int, module: nn.Module, name: str, x: Tensor, y: Tensor) -> None:
        schedule = lower(build(name, dist.get_world_size(), NUM_MICROBATCHES))
        rows = [[op for op in row if not isinstance(op, Step)] for row in schedule.ops]  # PyTorch's step has none
        xs, ys = x.chunk(NUM_MICROBATCHES), y.chunk(NUM_MICROBATCHES)
        is_last = rank == dist.get_world_size() - 1
        stage = ModuleStage(
            module,
            StageLists(Weights(module), GradientMean(dict.fromkeys(range(NUM_MICROBATCHES), 1 / NUM_MICROBATCHES))),
            torch.optim.SGD(module.parameters()),
            loss if is_last else None,
            needs_input_gradient=rank > 0,
        )
        device = torch.device("cpu")
        shapes = {0: TensorShape(tuple(xs[0].shape), x.dtype)}
        transport = ProcessGroupTransport(
            RankChannels(rank, dict(enumerate(rows)), schedule.num_stages, shapes, device), 60.0
        )
        self._rank = Rank(rank, rows[rank], schedule.num_stages, {rank: stage}, transport,
                          Recorder(HostClock(), make_meter(device)))  # fmt: skip
        self._batch = Batch(xs, ys)

    def __call__(self) -> Times:
        begin(self._rank)
        for waiting in execute_rank(self._rank, self._batch):
            raise RuntimeError(str(waiting))
        times = self._rank.recorder.times_ns()
        return [
            (str(op), start / 1e9, end / 1e9)
            for op, (_, start, end) in zip(self._rank.ops, times, strict=True)
            if isinstance(op, Compute)
        ]


def ratio(schedule: Schedule, gathered: Sequence[Times]) -> tuple[float, float, float]:
    """Return (step time, longest path, mean op time) of one step [s]."""
    durations = {name: end - start for times in gathered for name, start, end in times}
    began = min(start for times in gathered for _, start, _ in times)
    ended = max(end for times in gathered for _, _, end in times)
    return ended - began, longest_path_s(schedule, durations), statistics.mean(durations.values())


def gather(times: Times) -> list[Times]:
    """Return the times of all ranks, on every rank."""
    names = [name for name, _, _ in times]
    own_times = torch.tensor([[start, end] for _, start, end in times], dtype=torch.float64)
    everyone = [torch.empty_like(own_times) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own_times)
    rank = dist.get_rank()
    return [
        [(f"{other}{name[len(str(rank)) :]}", *pair) for name, pair in zip(names, part.tolist(), strict=True)]
        for other, part in enumerate(everyone)
    ]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The two runtimes on one size and schedule; sequences have an entry per step, and steps took turns.

    Attributes:
        size: Key of `SIZES`.
        ops_s: Mean op times [s].
        ratios: Step times over longest paths, by runtime.
        steps_s: Step times [s], by runtime.
    """

    size: str
    schedule: str
    ops_s: list[float]
    ratios: dict[str, list[float]]
    steps_s: dict[str, list[float]]

    def row(self) -> str:
        """Return medians over the steps, and the quartiles of the quotient of neighbouring steps."""
        ratios = " | ".join(f"{statistics.median(self.ratios[kind]):.3f}" for kind in ("pipesched", "torch"))
        pairs = zip(self.steps_s["pipesched"], self.steps_s["torch"], strict=True)
        low, middle, high = statistics.quantiles([own_s / torch_s for own_s, torch_s in pairs], n=4)
        op_ms, drift = statistics.median(self.ops_s) * 1e3, max(self.ops_s) / min(self.ops_s)
        return (
            f"| {self.size} | {op_ms:.1f} ms | {drift:.2f} | {self.schedule} | {ratios} "
            f"| {middle:.3f} ({low:.3f} to {high:.3f}) |"
        )


def measure(steps: int) -> Iterator[Comparison]:
    """Measure every size and schedule; the two runtimes take turns, step by step."""
    rank = dist.get_rank()
    for label, (width, samples, layers) in SIZES.items():
        for name in SCHEDULES:
            torch.manual_seed(0)
            x, y = torch.randn(samples * NUM_MICROBATCHES, width), torch.randn(samples * NUM_MICROBATCHES, width)
            kinds: dict[str, Callable[[], Times]] = {
                "pipesched": OurStep(rank, Chain(width, layers), name, x, y),
                "torch": TheirStep(rank, Chain(width, layers), name, x, y),
            }
            schedule = compute_only(build(name, dist.get_world_size(), NUM_MICROBATCHES))
            comparison = Comparison(label, name, [], {kind: [] for kind in kinds}, {kind: [] for kind in kinds})
            for turn in range(steps + WARM_UP):
                for kind, step in sorted(kinds.items(), reverse=turn % 2 == 1):
                    dist.barrier()
                    times = step()
                    took_s, path_s, op_s = ratio(schedule, gather(sorted(times)))
                    if turn >= WARM_UP:
                        comparison.ratios[kind].append(took_s / path_s)
                        comparison.steps_s[kind].append(took_s)
                        comparison.ops_s.append(op_s)
            yield comparison


def report(steps: int, origin: Sequence[str]) -> Iterator[str]:
    """Yield each line of the report as soon as it is known; `origin` is the provenance."""
    yield "# Overhead of the executor beside PyTorch's runtime"
    yield ""
    yield from origin
    yield ""
    yield f"{NUM_MICROBATCHES} micro-batches. Under each runtime: step time over the longest path of its own op times,"
    yield f"the median of {steps} steps. Step time: pipesched's over PyTorch's, median and quartiles of steps in turn."
    yield "Drift: the largest mean op time of a step over the smallest."
    yield ""
    yield "| ops | mean op | drift | schedule | pipesched | torch.distributed.pipelining | step time |"
    yield "|---|---|---|---|---|---|---|"
    for comparison in measure(steps):
        yield comparison.row()


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    if arguments.steps < 2:
        parser.error(f"--steps: got {arguments.steps}, expected at least 2, for quartiles")
    how = "2 gloo processes of 1 thread on a core each"
    origin = [*provenance(f"overhead.py --steps {arguments.steps}", os.getloadavg()[0], how)]  # counts all cores
    show_as_pair(report(arguments.steps, origin), arguments.out)


if __name__ == "__main__":
    main()
