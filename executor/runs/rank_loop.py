"""A training loop with a process per rank: this process' rank, under torchrun or in a group of torch.distributed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import cached_property
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor

from pipesched.executor import LAUNCHER_S, ExecutionError, PeerLost, starting, waiting_for
from pipesched.executor.core import Batch, HostClock, ModuleStage, Rank, Recorder, Stage, build_stages, copied_weights
from pipesched.executor.launch import field_digests, met
from pipesched.executor.runs.equal_models import digest_of, require_equal_digests
from pipesched.executor.runs.loss_mail import LossMail
from pipesched.executor.runs.measuring_job import clock_offset_ns, recorded_tensors
from pipesched.executor.runs.own_loop import FORWARD_TAG, LoopSpec, OwnLoop, RankRecord, evaluation_mode
from pipesched.executor.transport import MESSAGE_TAG, BoundaryShape, all_gather, find_shapes, gather_texts
from pipesched.profiles.models import Value, tensors_of, torch_dtype
from pipesched.schedules import Schedule
from pipesched.schedules.formats import to_json


@final
class RankLoop(OwnLoop):
    """This process' rank of a training loop.

    Raises:
        ExecutionError: The processes do not agree, or there is another number of them.
        PeerLost: Another process did not come.
    """

    def __init__(self, spec: LoopSpec) -> None:
        super().__init__(spec)
        self._stack, lists = ExitStack(), spec.schedule
        self._number, self._call = 0, ""
        self._has_compared = False
        self._context = context = self._stack.enter_context(met(spec.settings, lists, "env://", _digests(spec)))
        try:
            with starting(context.rank):
                self._stages = stages = build_stages(
                    lists, context.rank, spec.model, spec.bounds, spec.settings, context.device,
                    optimizer=spec.optimizer, keeps_dtype=spec.keeps_dtype, on_loss=self._take_loss,
                )  # fmt: skip
                self._prepare()
            sample = self._placed(Batch([spec.sample], []), context.rank, context.device).inputs
            self._sample = sample[0] if sample else None
            self._shapes = find_shapes(lists, context.rank, stages, self._sample)
            senders = lists.replicas(lists.num_stages - 1)
            self._mail = LossMail(context.rank, senders, lists.num_ranks, spec.settings.timeout_s)
            self._num_own_losses = sum(
                lists.home(lists.num_stages - 1, microbatch) == context.rank
                for microbatch in range(lists.num_microbatches)
            )
            self._align_copies()
            self._counts: dict[int, int] = {}
            for text in gather_texts(json.dumps(self._own_counts())):
                self._counts |= {int(index): count for index, count in json.loads(text).items()}
            self._use(self._join(lists, {context.rank: stages}, MESSAGE_TAG))
        except BaseException as error:
            self.close(error)
            raise

    @property
    def stages(self) -> Mapping[int, Mapping[int, ModuleStage]]:
        return {self._context.rank: self._stages}

    @property
    def is_first(self) -> bool:
        return self._context.rank == 0

    @property
    def parameter_counts(self) -> Mapping[int, int]:
        return self._counts

    @property
    def boundary_bytes(self) -> Mapping[int, int]:
        return {index: shape.num_elements * shape.dtype.itemsize for index, shape in self._shapes.items()}

    def _join(self, lists: Schedule, stages: Mapping[int, Mapping[int, Stage]], tag: int) -> list[Rank]:
        recorder = Recorder(HostClock(), keeps=False)
        shapes = self._forward_shapes if tag == FORWARD_TAG else self._shapes
        return [self._context.join(lists, stages[self._context.rank], shapes, recorder, tag=tag)]

    @cached_property
    def _forward_shapes(self) -> Mapping[int, BoundaryShape]:
        """The shapes between stages in evaluation mode; all ranks ask for them together."""
        with evaluation_mode(stage.module for stage in self._stages.values()):
            return find_shapes(self._spec.schedule, self._context.rank, self._stages, self._sample)

    def _align_copies(self) -> None:
        """Give all copies of a weight the value of the first, as scripts may have drawn different ones.

        The replicas of a stage have copies, and so have stages that share a parameter.
        """
        modules = {index: stage.module for index, stage in self._stages.items()}
        copied = copied_weights(self._spec.schedule, self._spec.model, self._spec.bounds, modules)
        rank = self._context.rank
        firsts = self.union({name: weight.own[0] for name, weight in copied.items() if weight.first_rank == rank})
        for name, weight in copied.items():
            for tensor in weight.own:
                tensor.detach().copy_(firsts[name])

    def begin_turn(self, call: str) -> None:
        self._number, self._call = self._number + 1, call

    def cause_of(self, error: BaseException) -> ExecutionError | None:
        """Return an error if the processes wait in different calls, or None for another cause or a dead process."""
        context, size = self._context, self._spec.schedule.num_ranks
        if not isinstance(error, PeerLost) or context.store is None:
            return None
        with suppress(RuntimeError):  # a process that has died tells nothing
            context.store.set(f"call{context.rank}", f"call {self._number}, {self._call}")
            keys = [f"call{rank}" for rank in range(size)]
            context.store.wait(keys, timedelta(seconds=LAUNCHER_S))
            calls = [context.store.get(key).decode() for key in keys]
            if len(set(calls)) > 1:
                made = "; ".join(f"rank {rank}: {call}" for rank, call in enumerate(calls))
                return ExecutionError(
                    f"pipeline: got different calls ({made}), expected the same calls in the same order in every "
                    "process"
                )
        return None

    def step(self, batch: Batch, *, updates: bool, records: bool) -> Tensor:
        self._turn = self._number
        if not self._has_compared:
            self._has_compared = True
            _require_equal(batch)
        self._mail.expect()
        return super().step(batch, updates=updates, records=records)

    def _take_loss(self, microbatch: int, output: Value, target: Value, loss: Tensor) -> None:
        super()._take_loss(microbatch, output, target, loss)
        if len(self._losses) == self._num_own_losses and self._context.device.type == "cpu":
            self._send_losses()  # before the last backward, during which the message travels

    def _send_losses(self) -> None:
        total = sum(self._losses[microbatch].item() for microbatch in sorted(self._losses))
        self._mail.send(total, next(iter(self._losses.values())).dtype, self._turn)

    def _execute(self, ranks: Sequence[Rank], batch: Batch) -> None:
        (rank,) = ranks
        self._context.run(rank, self._placed(batch, rank.rank, self._context.device), meets=False)

    def _mean_loss(self) -> Tensor:
        if self._losses and self._context.device.type != "cpu":
            self._send_losses()
        total, dtype = self._mail.total(self._turn)
        return torch.tensor(total / self._spec.schedule.num_microbatches, dtype=dtype)

    def gather_texts(self, text: str) -> list[str]:
        return gather_texts(text)

    def union(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in own.items()}
        headers = gather_texts(json.dumps([[name, _name_of(t.dtype), list(t.shape)] for name, t in own.items()]))
        tensors: dict[str, Tensor] = {}
        for rank, header in enumerate(headers):
            for name, dtype, shape in json.loads(header):
                tensor = own[name] if name in own else torch.empty(shape, dtype=torch_dtype(dtype))
                if tensor.numel():
                    with waiting_for(f"{name} of rank {rank}", rank):
                        dist.broadcast(tensor.view(-1).view(torch.uint8), rank)
                tensors[name] = tensor
        return tensors

    def _records(self) -> list[RankRecord]:
        times_ns, held_bytes = recorded_tensors(self._recorded[0].recorder)
        times = all_gather(times_ns + clock_offset_ns(self._context.rank))
        held = all_gather(held_bytes)
        return [(rows.tolist(), after.tolist(), most.tolist()) for rows, (after, most) in zip(times, held, strict=True)]

    def close(self, error: BaseException | None = None) -> None:
        if error is None:
            self._stack.close()
        else:
            self._stack.__exit__(type(error), error, error.__traceback__)

    def _device_of(self, rank: int) -> torch.device:  # noqa: ARG002 -- there is one
        return self._context.device


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _digests(spec: LoopSpec) -> dict[str, str]:
    settings = spec.settings
    return field_digests(
        {
            "schedule": to_json(spec.schedule),
            "partition": spec.bounds,
            "layers of the model": spec.model.outline,
            "example": [[list(t.shape), str(t.dtype)] for t in tensors_of(spec.sample)],
            "seed": settings.seed,
            "clip_grad_norm": settings.clip_grad_norm,
            "dtype": None if spec.keeps_dtype else settings.dtype,
            "device": settings.device,
        }
    )


def _require_equal(batch: Batch) -> None:
    """Require the same batch in every process, because different processes read the inputs and the targets."""
    digest = digest_of(tensor for value in (*batch.inputs, *batch.targets) for tensor in tensors_of(value))
    require_equal_digests(
        {"batch": digest},
        lambda name, rank, first: (
            f"inputs: rank {rank} got another {name} than rank {first}, expected the same batches in every process; "
            "try one seed for the generators of all DataLoaders"
        ),
    )
