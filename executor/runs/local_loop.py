"""A training loop whose ranks all run in this process: on a CPU, or each on a stream of its GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from typing import cast, final

import torch
from torch import Tensor

from pipesched.executor import starting
from pipesched.executor.core import Batch, ModuleStage, Rank, Stage, build_stages
from pipesched.executor.runs.local_runner import devices_of, local_ranks, make_streams
from pipesched.executor.runs.own_loop import LoopSpec, OwnLoop, RankRecord
from pipesched.executor.runs.stream_watch import StreamWatch
from pipesched.profiles.measuring import computing
from pipesched.profiles.models import Value, mapped, on_device, tensors_of
from pipesched.schedules import Schedule


@final
class LocalLoop(OwnLoop):
    """All ranks of a training loop, in turns."""

    def __init__(self, spec: LoopSpec) -> None:
        super().__init__(spec)
        self._devices = devices_of(spec.schedule.rank_to_device, spec.settings.device)
        self._stack = ExitStack()
        self._stack.enter_context(computing(spec.settings.threads, set(self._devices)))

        self._stages = dict[int, dict[int, ModuleStage]]()

        def build(rank: int) -> dict[int, ModuleStage]:
            with starting(rank):
                self._stages[rank] = build_stages(
                    spec.schedule, rank, spec.model, spec.bounds, spec.settings, self._devices[rank],
                    optimizer=spec.optimizer, keeps_dtype=spec.keeps_dtype, on_loss=self._take_loss,
                )  # fmt: skip
            return self._stages[rank]

        streams = make_streams(self._devices, are_green=spec.settings.has_green_contexts)
        self._watch = StreamWatch(streams, spec.settings.timeout_s)
        self._ranks = local_ranks(spec.schedule, build, streams=streams)
        self._prepare()
        self._use(list(self._ranks))

    @property
    def stages(self) -> Mapping[int, Mapping[int, ModuleStage]]:
        return self._stages

    @property
    def is_first(self) -> bool:
        return True

    @property
    def parameter_counts(self) -> Mapping[int, int]:
        return self._own_counts()

    @cached_property
    def boundary_bytes(self) -> Mapping[int, int]:
        schedule, sizes = self._spec.schedule, dict[int, int]()
        rank = schedule.home(0, 0)
        value: object = self._placed(Batch([self._spec.sample], []), rank, self._devices[rank]).inputs[0]
        for index in range(schedule.num_stages - 1):
            rank = schedule.home(index, 0)
            value = self.stages[rank][index].try_forward(cast("Value", value))
            sizes[index] = sum(tensor.nbytes for tensor in tensors_of(cast("Value", value)))
            value = mapped(partial(on_device, device=self._devices[schedule.home(index + 1, 0)]), cast("Value", value))
        return sizes

    def _join(self, lists: Schedule, stages: Mapping[int, Mapping[int, Stage]], tag: int) -> list[Rank]:  # noqa: ARG002 -- messages of a list do not outlive it
        return [replace(rank, ops=lists.lists[rank.rank], stages=stages[rank.rank]) for rank in self._ranks]

    def _execute(self, ranks: Sequence[Rank], batch: Batch) -> None:
        batches = {rank.rank: self._placed(batch, rank.rank, self._devices[rank.rank]) for rank in ranks}
        with self._watch.watching():
            self._watch.run(ranks, batches)

    def _mean_loss(self) -> Tensor:
        losses = [self._losses[microbatch] for microbatch in sorted(self._losses)]
        return torch.tensor(sum(loss.item() for loss in losses) / len(losses), dtype=losses[0].dtype)

    def gather_texts(self, text: str) -> list[str]:
        return [text]

    def union(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in own.items()}

    def _records(self) -> list[RankRecord]:
        recorders = [rank.recorder for rank in self._recorded]
        return [(recorder.times_ns(), recorder.held_bytes(), recorder.most_bytes()) for recorder in recorders]

    def close(self, error: BaseException | None = None) -> None:  # noqa: ARG002 -- there is nobody to wait for
        self._stack.close()

    def _device_of(self, rank: int) -> torch.device:
        return self._devices[rank]
