"""The context of a rank: its device, its process groups, and how it meets the other ranks."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from itertools import count

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from pipesched.executor import START_S, Averaging, ExecutionError, RankFailed, RunSettings, waiting_for
from pipesched.executor.core import (
    Averaged,
    Batch,
    ElasticAverager,
    ModuleStage,
    Rank,
    Recorder,
    SharedPool,
    Stage,
    Transport,
    attach_averagers,
    averaged,
    averagers,
    begin,
    channels,
    end,
    execute_rank,
    lists_of,
    shared_bytes,
)
from pipesched.executor.launch.injected_faults import Interference
from pipesched.executor.launch.meeting import (
    abort_failed,
    among_ourselves,
    default_group,
    digests_of,
    require_agreement,
    scripts_group,
    scripts_store,
    shared_file,
)
from pipesched.executor.launch.rank_device import Neighbours, RankDevice, placed, ranks_of_processes
from pipesched.executor.launch.run_spec import RunSpec, Train
from pipesched.executor.transport import (
    MESSAGE_TAG,
    BoundaryShape,
    Groups,
    NcclTransport,
    ProcessGroupTransport,
    RankChannels,
    gather_texts,
    nccl_environment,
)
from pipesched.profiles import MessagePrecision
from pipesched.profiles.measuring import computing
from pipesched.profiles.processes import pin, usable_cores
from pipesched.schedules import Schedule
from pipesched.schedules.ops import Op


@dataclass(frozen=True, slots=True)
class RankContext:
    """A rank, its device, and its connections.

    Attributes:
        place: The device of the rank, and the backend of its messages.
        groups: The process groups of the run, kept from list to list.
        timeout_s: Longest wait of the rank for one message.
        is_first: Whether this is process 0, which reports the results.
        store: Store that all processes share, or None if unknown.
        interference: Faults of the rank, or None without any.
    """

    rank: int
    place: RankDevice
    groups: Groups
    timeout_s: float
    is_first: bool
    store: Store | None = None
    interference: Interference | None = None

    @property
    def device(self) -> torch.device:
        """The device of the rank."""
        return self.place.device

    def meet(self) -> None:
        """Wait for all ranks."""
        with waiting_for(f"the other ranks of rank {self.rank}"):
            dist.barrier()

    def join(
        self,
        schedule: Schedule,
        stages: Mapping[int, Stage],
        shapes: Mapping[int, BoundaryShape],
        recorder: Recorder,
        at: Callable[[int, Op], None] = lambda index, op: None,  # noqa: ARG005 -- nobody need listen
        compression: MessagePrecision | None = None,
        tag: int = MESSAGE_TAG,
    ) -> Rank:
        """Return the `Rank` of this process in `schedule`; all ranks call this together.

        Args:
            schedule: Lowered if its lists are in memory.
            stages: The stages of the rank.
            shapes: Shapes of the values that cross the boundaries between stages.
            recorder: Recorder of the rank.
            at: Called before each op with its position in the list and the op.
            compression: Compression of the messages between stages.
            tag: Number of the messages over gloo; lists whose messages must not meet have different numbers.

        Raises:
            ExecutionError: Compression over NCCL.
        """
        if compression is not None and self.place.backend == "nccl":
            raise ExecutionError(
                f"compression: got {compression} over nccl, expected gloo, because the size of a compressed message is "
                "known only after a wait for the device; try backend gloo"
            )
        lists = lists_of(schedule, {self.rank, *(sender for sender, to in channels(schedule) if to == self.rank)})
        transport = self._transport(schedule, lists, shapes, compression, tag)
        rank = Rank(self.rank, lists[self.rank], schedule.num_stages, stages, transport, recorder, at)
        return rank if self.interference is None else self.interference.on(rank)

    def _transport(
        self,
        schedule: Schedule,
        lists: Mapping[int, Iterable[Op]],
        shapes: Mapping[int, BoundaryShape],
        compression: MessagePrecision | None,
        tag: int,
    ) -> Transport:
        """Return the transport of this rank; all ranks call this together."""
        terms = {group: [rank for rank, _ in places] for group, places in schedule.summands.items()}
        sums = {group: tuple(dict.fromkeys(ranks)) for group, ranks in terms.items()}
        with among_ourselves(self.rank), waiting_for(f"the other ranks of rank {self.rank}"):
            own = RankChannels(
                self.rank, lists, schedule.num_stages, shapes, self.device, self.groups.of_sums(sums),
                {group: Counter(ranks)[self.rank] for group, ranks in terms.items()},
                are_held=schedule.is_held and schedule.is_lowered,
                tag=tag,
            )  # fmt: skip
            if self.place.backend == "nccl":
                return NcclTransport(own, self.groups.of_channels(channels(schedule)))
        return ProcessGroupTransport(own, self.timeout_s, compression, is_staged=self.device.type == "cuda")

    def run(self, me: Rank, batch: Batch, *, meets: bool = True) -> None:
        """Run the list of `me` once.

        Args:
            me: The rank.
            batch: The data of the run.
            meets: Whether all ranks start together.

        Raises:
            RankFailed: An op failed; the message names rank, op and micro-batch.
        """
        begin(me)
        if meets:
            self.meet()
        for waiting in execute_rank(me, batch):
            raise RankFailed(str(waiting))  # our transport waits inside `take`
        end(me)


@contextmanager
def connected(spec: RunSpec, schedule: Schedule, meet: str) -> Iterator[RankContext]:
    """Meet the other ranks of `schedule`; RANK and WORLD_SIZE are in the environment, as torchrun sets them.

    RANK is the number of the process; the rank of the schedule follows from the devices of the ranks.

    Args:
        spec: Specification of the run; under torchrun, the processes check that their specifications are equal.
        schedule: The lists of all ranks.
        meet: Meeting point of the ranks: an ``init_method`` of torch.distributed.

    Raises:
        ExecutionError: The number of processes is not the number of ranks, the device or backend is missing, or the
            processes do not agree.
        PeerLost: Another rank did not come, or ended early.
    """
    digests = digests_of(spec) if meet == "env://" else None
    with met(spec, schedule, meet, digests) as context:
        size = spec.job.run.microbatches_per_step if isinstance(spec.job, Train) else schedule.num_microbatches
        yield replace(context, interference=Interference(spec, size, context.rank))


@contextmanager
def met(
    settings: RunSettings, schedule: Schedule, meet: str, digests: Mapping[str, str] | None
) -> Iterator[RankContext]:
    """Meet the other ranks, as `connected`; a default group that the script has made is used, and stays as it is.

    Args:
        settings: Give device, backend, threads and timeout.
        schedule: The lists of all ranks.
        meet: Meeting point of the ranks: an ``init_method`` of torch.distributed.
        digests: Digests of the fields of the run that must be equal in all processes, or None for no check.

    Raises:
        ExecutionError, PeerLost: As for `connected`; or the script's group carries no tensors of CPUs.
    """
    is_theirs = meet == "env://" and dist.is_initialized()
    if is_theirs:
        process, size = dist.get_rank(), dist.get_world_size()
    else:
        process, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size != schedule.num_ranks:
        raise ExecutionError(
            f"schedule {schedule.name} has {schedule.num_ranks} ranks, but {size} processes were started; start a "
            "process for each rank"
        )
    rank = ranks_of_processes(schedule.rank_to_device)[process]
    near = Neighbours.of(schedule.rank_to_device, process)
    # a dead peer is seen through its closed connection; this only bounds waits outside of the lists
    patience = timedelta(seconds=max(START_S, settings.timeout_s))
    abort_failed(gives_up=True)
    with waiting_for(f"the other ranks of rank {rank}"):
        store = scripts_store(next(_meetings)) if is_theirs else _store(meet, process, size, patience)
    if digests is not None:
        require_agreement(digests, store, process, size)
    place = placed(settings.device, settings.backend, near, store)
    groups = Groups(place.backend, place.device)
    is_pinned = settings.is_pinned and settings.device == "cpu"
    with (
        _cores(near.index, near.num_devices, settings.threads, is_pinned=is_pinned),
        computing(settings.threads, [place.device]),
        nccl_environment() if place.backend == "nccl" else nullcontext(),
        scripts_group(groups, rank) if is_theirs else default_group(groups, rank, size, store, patience),
    ):
        yield RankContext(rank, place, groups, settings.timeout_s, process == 0, store)
        with waiting_for(f"the other ranks of rank {rank}"):
            dist.barrier()


@contextmanager
def _cores(index: int, num_devices: int, threads: int, *, is_pinned: bool) -> Iterator[None]:
    """Inside the block, pin this process to the `threads` cores of device `index`, if `is_pinned`."""
    cores = usable_cores()
    if is_pinned:
        pin(index, num_devices, threads)
    try:
        yield
    finally:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)


_meetings = count()


def _store(meet: str, process: int, size: int, patience: timedelta) -> Store:
    """Return the store of the ranks' addresses, which is with the first process; rank 0 may be elsewhere."""
    if meet != "env://":
        store = _joined(meet, process, size)
    else:  # several runs of one process may meet there in turn, and runs that torchrun restarts
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"pipesched{restart}.{next(_meetings)}", _lasting(meet, process, size))
    store.set_timeout(patience)
    return store


def _joined(meet: str, process: int, size: int) -> Store:
    store: Store = next(rendezvous(meet, process, size, timeout=timedelta(seconds=START_S)))[0]
    return store


_lasting = cache(_joined)


@contextmanager
def references(
    schedule: Schedule, context: RankContext, stages: Mapping[int, Stage], averaging: Averaging
) -> Iterator[None]:
    """Attach the averaged stages of this rank to their reference inside the block; all ranks call this together.

    The ranks of a device share the memory of its reference, which the first of them makes.

    Args:
        context: Context of this rank.
        stages: Stages of this rank, with the weights that all pipelines begin with.
        averaging: The form of elastic averaging.

    Raises:
        ExecutionError: A stage is averaged on several devices, or the ranks of a device are on several machines.
    """
    ranks_of = averagers(schedule)
    if not ranks_of:
        yield
        return
    devices = schedule.rank_to_device
    own = devices[context.rank]
    here = [averaged for averaged in _everyones(ranks_of, stages, context) if devices[averaged.ranks[0]] == own]
    ranks = sorted({rank for averaged in here for rank in averaged.ranks})
    num_bytes = shared_bytes(here) if context.rank == min(ranks, default=None) else None
    source = ranks[0] if context.rank in ranks else None
    attached: list[ElasticAverager] = []
    with ExitStack() as stack:
        with shared_file(num_bytes, source, f"device {own}") as path:
            if path is not None:
                pool = stack.enter_context(closing(SharedPool(path, here, context.timeout_s)))
                attached = attach_averagers(pool, stages, context.rank, averaging)
            context.meet()  # all have opened the memory, and the references hold their first weights
        yield
        for averager in attached:
            averager.is_complete()  # waits: if it never is, that is to be known
        context.meet()


def _everyones(
    ranks_of: Mapping[int, Sequence[int]], stages: Mapping[int, Stage], context: RankContext
) -> Iterator[Averaged]:
    """Yield all averaged stages; the first rank of each stage sends its tensor names and sizes to the others."""
    first_stages = {
        index: averaged(index, ranks_of[index], stage.parameters).tensors
        for index, stage in stages.items()
        if isinstance(stage, ModuleStage) and index in ranks_of and context.rank == ranks_of[index][0]
    }
    told = [json.loads(text) for text in gather_texts(json.dumps(first_stages))]
    for index, ranks in ranks_of.items():
        yield Averaged(index, tuple(ranks), tuple((name, count) for name, count in told[ranks[0]][str(index)]))
