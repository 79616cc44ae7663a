"""The calls of NCCL's transport, in their order, recorded by a double of torch.distributed."""

import os
from collections import Counter, defaultdict
from datetime import timedelta
from functools import cache
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from pipesched.executor import PeerLost
from pipesched.executor.transport import Groups, NcclTransport, RankChannels, TensorShape, groups, nccl_environment
from pipesched.executor.transport.process_group import _ENVIRONMENT
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.common import LONGEST_S
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Message, Payload, Recv, Reduce, Send, needs_from_others
from tests.executor.pipelines import any_schedule
from tests.executor.transport.recorded_dist import SIZE, RecordedDist, calls_of, context_of, run_list

GPU = torch.device("cuda", 1)
COMMUNICATIONS = ("isend", "irecv", "send", "recv", "all_reduce", "warm-up")
ON_OWN_STREAM = ("compute", "step", "wait")


@pytest.fixture
def double(monkeypatch):
    return RecordedDist(monkeypatch)


@cache
def list_of(name):
    made = any_schedule(name, 4, seed=1)
    return None if made is None else lower(made)


@pytest.fixture(params=CATALOGUE)
def name(request):
    if list_of(request.param) is None:
        pytest.skip("no such number of micro-batches")
    return request.param


@cache
def rows_of(name, backend="nccl"):
    """Return the calls of every rank of a schedule, and the devices of their tensors, as if on a GPU."""
    with pytest.MonkeyPatch.context() as monkeypatch, FakeTensorMode():
        double = RecordedDist(monkeypatch)
        device = GPU if backend == "nccl" else torch.device("cpu")
        return calls_of(double, list_of(name), backend, device), set(double.devices)


def spoken(calls):
    """Say the calls after the first op in words."""
    for call in calls:
        if call.kind == "wait":
            yield f"{call.op} waits for {next(str(c.op) for c in calls if c.work == call.work)}"
        elif call.op is not None:
            yield f"{call.op} {call.kind}"


def test_the_calls_of_1f1b_follow_its_lists(double):
    """The wait for a gradient proves that its activation has arrived, and the last sends are waited for at the end."""
    first, second = calls_of(double, lower(build("1f1b", 2, 2)))
    assert [*spoken(first)] == [
        "0F0 compute", "0SEND_F0 isend", "0RECV_B0 irecv", "0F1 compute", "0SEND_F1 isend", "0RECV_B1 irecv",
        "0B0 waits for 0RECV_B0", "0B0 waits for 0SEND_F0", "0B0 compute",
        "0B1 waits for 0RECV_B1", "0B1 waits for 0SEND_F1", "0B1 compute", "0STEP step",
    ]  # fmt: skip
    assert [*spoken(second)] == [
        "1RECV_F0 irecv", "1RECV_F1 irecv", "1F0 waits for 1RECV_F0", "1F0 compute", "1B0 compute", "1SEND_B0 isend",
        "1F1 waits for 1RECV_F1", "1F1 compute", "1B1 compute", "1SEND_B1 isend", "1STEP step",
        "1STEP waits for 1SEND_B0", "1STEP waits for 1SEND_B1",
    ]  # fmt: skip


def test_posts_follow_the_list_and_use_the_group_of_their_direction(name):
    for rank, calls in enumerate(rows_of(name)[0]):
        posts = [(call.op, call.group[0]) for call in calls if call.kind in ("isend", "irecv")]
        assert posts == [
            (op, (rank, op.peer) if isinstance(op, Send) else (op.peer, rank))
            for op in list_of(name).ops[rank]
            if isinstance(op, Send | Recv)
        ]


def test_no_wait_has_a_time_out_and_each_work_is_waited_for_once(name):
    for calls in rows_of(name)[0]:
        waits = [call for call in calls if call.kind == "wait"]
        assert {call.arguments for call in waits} <= {()}
        works = [call.work for call in calls if call.kind in ("isend", "irecv", "all_reduce")]
        assert Counter(call.work for call in waits) == Counter(works)


@pytest.mark.parametrize("name", ["1f1b", "chimera", "zbv"])
def test_over_gloo_each_wait_has_the_time_out_of_the_run(name):
    for calls in rows_of(name, "gloo")[0]:
        waits = [call for call in calls if call.kind == "wait"]
        works = [call.work for call in calls if call.kind in ("isend", "irecv", "all_reduce")]
        assert Counter(call.work for call in waits) == Counter(works)
        assert {call.arguments for call in waits} <= {(timedelta(seconds=1.5),)}


def test_the_stream_has_waited_for_what_a_computation_needs(name):
    schedule, num_needed = list_of(name), 0
    for calls in rows_of(name)[0]:
        works, waited = {}, set()
        for call in calls:
            match call.kind:
                case "irecv":
                    works[call.op.message] = call.work
                case "wait":
                    waited.add(call.work)
                case "compute":
                    for message in needs_from_others(call.arguments[0], schedule.num_stages):
                        if message in works:
                            num_needed += 1
                            assert works[message] in waited
    assert num_needed == sum(isinstance(op, Recv) for row in schedule.ops for op in row)


def unfinished(rows):
    """Return the communications of ranks that never end, as streams go: each communicator has a stream on each rank.

    One begins when the rank's own stream has come to where it was posted, and the one before it on its communicator
    has ended; it ends when all ranks of its group have begun it. The rank's own stream stands at a wait until then.
    """
    own = [[call for call in calls if call.kind in ON_OWN_STREAM] for calls in rows]
    posted = defaultdict(list)  # by (group, rank): (work, place on the rank's own stream)
    for rank, calls in enumerate(rows):
        place = 0
        for call in calls:
            place += call.kind in ON_OWN_STREAM
            if call.kind in COMMUNICATIONS:
                posted[call.group, rank].append((call.work, place))
    places, ended, num_ended = Counter(), set(), Counter()
    before = None
    while before != (before := (sum(places.values()), len(ended))):
        for rank, calls in enumerate(own):
            stands_at = (call.kind == "wait" and call.work not in ended for call in calls)
            places[rank] = next((place for place, stands in enumerate(stands_at) if stands), len(calls))
        for group in {group for group, _ in posted}:
            ends = [(rank, posted[group, rank][num_ended[group] :][:1]) for rank in group[0]]
            if all(queue and places[rank] >= queue[0][1] for rank, queue in ends):
                ended |= {queue[0][0] for _, queue in ends}
                num_ended[group] += 1
    return {work for works in posted.values() for work, _ in works} - ended


def test_streams_come_to_the_end_of_every_list(name):
    assert unfinished(rows_of(name)[0]) == set()


def test_the_streams_of_a_rank_that_sends_too_late_stand_still(double):
    """The test before this one relies on a rank that waits for the gradient before it sends its activation."""
    first, second = calls_of(double, lower(build("1f1b", 2, 2)))
    first.sort(key=lambda call: call.kind == "isend")  # stable: only the sends move, to the end
    assert len(unfinished([first, second])) == 2 * 2 * 2  # both ends of two activations and two gradients


def test_all_ranks_make_the_same_groups_in_the_same_order(name):
    schedule = list_of(name)
    made = [[call.group for call in calls if call.kind == "new_group"] for calls in rows_of(name)[0]]
    assert made == [made[0]] * schedule.num_ranks
    directions = {(rank, op.peer) for rank, row in enumerate(schedule.ops) for op in row if isinstance(op, Send)}
    replicas = [ranks for ranks in schedule.reducers.values() if len(ranks) > 1]
    assert len(made[0]) == len(directions) + len(replicas)


def test_groups_are_made_once_for_all_lists_of_a_run(double):
    chimera, longer = lower(build("chimera", 2, 2)), lower(build("chimera", 2, 4))
    pipeline = lower(build("1f1b", 2, 3))
    for rank in range(2):
        double.become(rank)
        context = context_of(rank, "nccl", torch.device("cpu"))
        num_made = []
        for schedule in (pipeline, chimera, longer, pipeline, chimera):
            run_list(double, context, schedule)
            num_made.append(sum(call.kind == "new_group" for call in double.calls))
        assert num_made == [2, 4, 4, 4, 4]  # two directions; then two stages with replicas


def test_communicators_are_bound_to_the_gpu_and_their_watchdog_outlasts_every_run(double):
    with FakeTensorMode():
        rows = calls_of(double, lower(build("chimera", 2, 2)), device=GPU)
    options = [(call.group[0], call.arguments[0]) for call in rows[0] if call.kind == "new_group"]
    assert len(options) == 4
    for _, given in options:
        assert (given.backend, given.device_id) == ("nccl", GPU)
        assert given.timeout == given.pg_options._timeout > timedelta(seconds=LONGEST_S)
    channels = [given.pg_options for _, given in options if getattr(given.pg_options, "is_high_priority_stream", False)]
    assert [(channel.config.min_ctas, channel.config.max_ctas) for channel in channels] == [(1, 4)] * 2


def test_a_pytorch_without_limits_of_thread_blocks_is_not_asked_for_them(double, monkeypatch):
    old = SimpleNamespace(Options=SimpleNamespace)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", old)
    rows = calls_of(double, lower(build("1f1b", 2, 2)))
    options = [call.arguments[0].pg_options for call in rows[0] if call.kind == "new_group"]
    assert [sorted(vars(option)) for option in options] == [["_timeout", "is_high_priority_stream"]] * 2


@pytest.mark.skipif(not dist.is_nccl_available(), reason="this PyTorch has no NCCL")
def test_pytorch_takes_the_options_of_a_channel():
    options = groups._channel_options()
    assert (options.config.min_ctas, options.config.max_ctas, options.is_high_priority_stream) == (1, 4, True)
    assert options._timeout > timedelta(seconds=LONGEST_S)


def test_all_messages_and_sums_are_on_the_gpu_of_the_rank(name):
    assert rows_of(name)[1] <= {GPU}


def test_a_list_runs_on_pytorchs_own_fake_groups():
    """The real torch.distributed accepts every call with these groups, peers and tensors."""
    schedule = lower(build("chimera", 2, 2))
    for rank in range(2):
        dist.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
        try:
            with FakeTensorMode():
                made = Groups("fake", GPU)
                ends = made.of_channels([(0, 1), (1, 0)])
                assert [dist.get_process_group_ranks(group) for group in ends.values()] == [[0, 1]] * 2
                assert ends[0, 1].bound_device_id == GPU
                replicas = made.of_sums(schedule.reducers)
                assert sorted(replicas) == [0, 1]
                shapes = {stage: TensorShape(SIZE, torch.float32) for stage in range(2)}
                transport = NcclTransport(
                    RankChannels(rank, dict(enumerate(schedule.ops)), 2, shapes, GPU, replicas), ends
                )
                drive(transport, schedule.ops[rank])
        finally:
            dist.destroy_process_group()


def drive(transport, ops):
    """Carry out the messages and sums of a list."""
    sums = []
    for op in ops:
        match op:
            case Send():
                transport.send(op, torch.zeros(SIZE, device=GPU))
            case Recv():
                transport.post(op)
            case Compute():
                for message in needs_from_others(op, 2):
                    taken = transport.take(message)
                    assert (taken.device, tuple(taken.shape)) == (GPU, SIZE)
            case Reduce():
                sums.append(transport.reduce(op, torch.zeros(SIZE, device=GPU)))
    assert [take().device for take in sums] == [GPU] * 2
    transport.flush()


def test_a_work_that_failed_names_the_rank_that_it_waited_for(double):
    context = context_of(0, "nccl", torch.device("cpu"))
    schedule = lower(build("gpipe", 2, 1))
    shapes = {0: TensorShape(SIZE, torch.float32)}
    transport = context.join(schedule, {}, shapes, None).transport
    transport.post(Recv(Message(Payload.GRADIENT, 1, 0), 1))
    (incoming,) = transport._posted.values()

    def failing():
        raise RuntimeError("NCCL communicator was aborted on rank 0.")

    incoming.work.wait = failing
    with pytest.raises(PeerLost, match="waited for message B0 of stage 1 from rank 1: NCCL communicator was aborted"):
        transport.take(Message(Payload.GRADIENT, 1, 0))


def test_the_variables_of_a_user_come_back(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    monkeypatch.delenv("TORCH_NCCL_ENABLE_MONITORING", raising=False)
    with nccl_environment():
        assert {name: os.environ[name] for name in _ENVIRONMENT} == dict.fromkeys(_ENVIRONMENT, "0")
    assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "1"
    assert "TORCH_NCCL_ENABLE_MONITORING" not in os.environ
