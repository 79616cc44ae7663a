"""A double of torch.distributed that records the calls of a rank, and a stage that records its computations."""

import weakref
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.distributed as dist

from pipesched.executor.core import Batch, HostClock, Recorder, Stage, execute_rank
from pipesched.executor.launch import RankContext
from pipesched.executor.launch.rank_device import RankDevice
from pipesched.executor.transport import Groups, TensorShape
from pipesched.schedules.ops import Step, gives, stages_of

CPU = torch.device("cpu")
SIZE = (3,)


@dataclass(frozen=True)
class Call:
    """One call of a rank.

    Attributes:
        kind: The name of the function.
        group: The ranks of its group, and its number among those with the same; None for the default group.
        op: The op that the rank was at; None before the first.
        work: Number of the work that it made, or waits for.
        arguments: Its other arguments.
    """

    kind: str
    group: tuple | None = None
    op: object = None
    work: int | None = None
    arguments: tuple = ()


class Group:
    """A process group; it has no threads and no connections."""

    def __init__(self, key, options, calls):
        self.key, self.options, self._calls = key, options, calls

    def abort(self):
        self._calls.append(Call("abort", self.key))


class RecordedDist:
    """Stands in for torch.distributed in one process, which may be one rank after the other."""

    def __init__(self, monkeypatch):
        self.rank, self.op, self.calls, self.devices = 0, None, [], []
        self._num_works, self._keys = 0, {}
        options = SimpleNamespace(Options=lambda: SimpleNamespace(config=SimpleNamespace(min_ctas=None, max_ctas=None)))
        monkeypatch.setattr(dist, "ProcessGroupNCCL", options, raising=False)
        monkeypatch.setattr(dist, "get_rank", lambda: self.rank)
        monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: list(group.key[0]))
        monkeypatch.setattr(dist, "new_group", self.new_group)
        for name in ("isend", "irecv", "send", "recv"):
            monkeypatch.setattr(dist, name, self._transfer(name))
        monkeypatch.setattr(dist, "all_reduce", self._all_reduce)

    def become(self, rank):
        self.rank, self.op, self.calls, self._keys = rank, None, [], {}

    def new_group(self, ranks, timeout=None, backend="gloo", pg_options=None, device_id=None):
        ranks = tuple(ranks)
        self._keys[ranks] = self._keys.get(ranks, 0) + 1
        key = ranks, self._keys[ranks]
        options = SimpleNamespace(timeout=timeout, backend=backend, pg_options=pg_options, device_id=device_id)
        self.calls.append(Call("new_group", key, self.op, arguments=(options,)))
        return Group(key, options, self.calls) if self.rank in ranks else dist.GroupMember.NON_GROUP_MEMBER

    def _transfer(self, name):
        def transfer(tensor, peer, group=None, tag=0):
            assert group is None or {self.rank, peer} == set(group.key[0])
            return self._begun(name, tensor, group, (peer, tag))

        return transfer

    def _all_reduce(self, tensor, group=None, async_op=False):
        return self._begun("all_reduce" if async_op else "warm-up", tensor, group, (tensor.numel(),))

    def _begun(self, kind, tensor, group, arguments):
        self.devices.append(tensor.device)
        self._num_works += 1
        work = Work(self, self._num_works, weakref.ref(tensor))
        self.calls.append(Call(kind, None if group is None else group.key, self.op, work.number, arguments))
        return work


class Work:
    """A work that asserts that its tensor is kept until somebody waits for it."""

    def __init__(self, double, number, tensor):
        self._double, self.number, self._tensor = double, number, tensor

    def wait(self, *arguments):
        assert self._tensor() is not None, "its tensor was freed before"
        self._double.calls.append(Call("wait", None, self._double.op, self.number, arguments))
        return True


class RecordedStage(Stage):
    """Gives a new tensor for each message, and records its computations."""

    def __init__(self, double, device):
        self._double, self._device = double, device

    def compute(self, op, received, target):
        self._double.calls.append(Call("compute", None, self._double.op, arguments=(op,)))
        return torch.zeros(SIZE, device=self._device) if gives(op) is not None else None

    def terms(self, op):
        bucket = SimpleNamespace(flatten=lambda: torch.zeros(SIZE, device=self._device), unflatten=lambda summed: None)
        return [bucket, bucket]

    def update(self, op):
        if isinstance(op, Step):
            self._double.calls.append(Call("step", None, self._double.op))


def context_of(rank, backend, device):
    return RankContext(rank, RankDevice(device, backend, 1, True), Groups(backend, device), 1.5, rank == 0)


def run_list(double, context, schedule, device=CPU):
    """Run the list of a rank once."""
    shapes = {stage: TensorShape(SIZE, torch.float32) for stage in range(schedule.num_stages)}
    stages = {stage: RecordedStage(double, device) for stage in stages_of(schedule.ops[context.rank])}

    def at(index, op):
        double.op = op

    me = context.join(schedule, stages, shapes, Recorder(HostClock(), keeps=False), at)
    nothing = [torch.zeros(0)] * schedule.num_microbatches
    for waiting in execute_rank(me, Batch(nothing, nothing)):
        raise AssertionError(str(waiting))


def calls_of(double, schedule, backend="nccl", device=CPU):
    """Return the calls of every rank, each running its list once."""
    rows = []
    for rank in range(schedule.num_ranks):
        double.become(rank)
        run_list(double, context_of(rank, backend, device), schedule, device)
        rows.append(double.calls)
    return rows
