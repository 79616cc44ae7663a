"""What a run holds, and lets go of."""

import gc
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from pipesched.executor.core import HostClock, Recorder
from pipesched.executor.core.memory_meter import Heap, Meter, make_meter
from pipesched.executor.transport import LocalTransport
from pipesched.profiles.models import Model
from pipesched.schedules import PredictionRule, make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Compute, Phase, Step, backward, forward
from tests.executor import pipelines
from tests.executor.pipelines import Calls, Local

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")


class CopyingTransport(LocalTransport):
    """Hands over a copy, as a network does, and watches the sender's tensor."""

    def __init__(self, rank, mailroom):
        super().__init__(rank, mailroom)
        self.sent = {}

    def send(self, op, tensor):
        self.sent[op.message] = StorageWeakRef(tensor.untyped_storage())
        super().send(op, tensor.clone())


def linear_model():
    """Layers whose backward does not need their own output."""
    layers = tuple(lambda: nn.Linear(8, 8) for _ in range(3))
    return Model("linear", layers, ("a", "b", "c"), nn.functional.mse_loss, lambda n, seed: (torch.ones(n, 8),) * 2)


@pytest.fixture
def linear(monkeypatch):
    monkeypatch.setattr(pipelines, "resolve_model", lambda text: linear_model())


def test_an_output_is_freed_once_sent_though_its_micro_batch_is_in_flight(linear):
    run = Local(build("gpipe", 3, 4), transport=CopyingTransport)
    first, freed = run.ranks[0], []

    def listen(number, index):
        if number == 0 and str(first.ops[index]).startswith("0B"):
            freed.append([reference.expired() for reference in first.transport.sent.values()])

    run.heard = Calls(listen)
    run.run()
    assert freed == [[True] * 4] * 4


def test_a_gradient_is_freed_once_sent(linear):
    run = Local(build("1f1b", 3, 4), transport=CopyingTransport).run()
    sent = run.ranks[1].transport.sent
    assert len(sent) == 8
    assert all(reference.expired() for reference in sent.values())


def test_a_gradient_received_is_freed_once_used(linear):
    run = Local(build("1f1b", 2, 2))
    first, still_there = run.ranks[0], []
    received = {}

    class Watching(LocalTransport):
        def take(self, message):
            tensor = super().take(message)
            if tensor is not None:
                received[message] = StorageWeakRef(tensor.untyped_storage())
            return tensor

    run.ranks[0] = replace(first, transport=Watching(0, run.room))

    def listen(number, index):
        if number == 0 and first.ops[index] == Step(0):
            still_there.extend(message for message, reference in received.items() if not reference.expired())

    run.heard = Calls(listen)
    run.run()
    assert len(received) == 2
    assert still_there == []


@pytest.mark.parametrize("name", ["interleaved", "pipedream"])
def test_nothing_grows_from_run_to_run(name):
    run = Local(build(name, 2, 4), optimizer="adam").run(times=2)
    before = _num_tensors()
    run.run(times=3)
    assert _num_tensors() == before
    assert not run.room.mail
    for index in range(run.schedule.num_stages):
        assert not run.stage(index)._saved


def test_the_heap_returns_to_where_it_was_after_a_run():
    meter = make_meter(torch.device("cpu"))
    if meter is None:
        pytest.skip("this allocator cannot be asked")
    run = Local(build("gpipe", 1, 4), "mlp:layers=4,width=64", optimizer="adam", size=256)
    run.ranks = [replace(run.ranks[0], recorder=Recorder(HostClock(), meter))]
    run.run()
    before = meter.held_bytes()
    run.run()
    one_activation = 256 * 64 * 8
    assert abs(meter.held_bytes() - before) < one_activation / 2
    assert max(run.ranks[0].recorder.held_bytes()) > run.stage(0).resident_bytes() + 4 * 3 * one_activation


class Growing(Heap):
    """A heap in which others keep what they make on the way."""

    allocated = 1000

    def read_bytes(self):
        return self.allocated, max(self.allocated, self._noted)


def test_what_is_there_besides_the_resident_bytes_at_the_end_is_not_held_and_nothing_is_below_nothing():
    heap = Growing()
    recorder = Recorder(HostClock(), Meter(heap))
    for allocated in (1050, 1180, 1390, 1300):
        heap.allocated = allocated
        recorder.add(0, 0, 0)
    recorder.end(resident_bytes=100)
    assert recorder.held_bytes() == [0, 0, 190, 100]


class LettingGo(Growing):
    """A heap from which a thread of a library gives back at the third look what the last op was over with."""

    looks = 0

    def read_bytes(self):
        self.looks += 1
        return (self.allocated - (1_000_000 if self.looks > 2 else 0),) * 2


def test_what_another_thread_still_holds_at_the_end_is_waited_for():
    heap = LettingGo()
    heap.allocated = 1_500_000
    recorder = Recorder(HostClock(), Meter(heap))
    heap.allocated, heap.looks = 2_500_000, 0
    recorder.add(0, 0, 0)
    recorder.end(resident_bytes=300_000)
    assert heap.looks == 3
    assert recorder.held_bytes() == [1_300_000]


def test_the_most_in_an_op_is_the_most_that_was_noted_in_it_or_is_held_after_it():
    heap = Growing()
    recorder = Recorder(HostClock(), Meter(heap))
    for allocated, is_after in ((1400, False), (1700, False), (1200, True), (1300, True), (1100, False), (1150, True)):
        heap.allocated = allocated
        if is_after:
            recorder.add(0, 0, 0)
        else:
            recorder.note()
    recorder.end(resident_bytes=150)  # so 1000 are not ours
    assert recorder.held_bytes() == [200, 300, 150]
    assert recorder.most_bytes() == [700, 300, 150]


def sizes(ops, **given):
    """Return the bytes (at most in, after) every op of one rank, in sizes of its weights, which outweigh all else."""
    meter = make_meter(torch.device("cpu"))
    if meter is None:
        pytest.skip("this allocator cannot be asked")
    run = Local(make_schedule("by_hand", 1, 2, [ops]), "mlp:layers=4,width=256", **given)
    run.ranks = [replace(run.ranks[0], recorder=(recorder := Recorder(HostClock(), meter)))]
    run.run(times=2)  # the optimizers make their state in the first
    weights = sum(parameter.numel() * 8 for parameter in run.parameters)
    return [
        (str(op), round(most / weights, 1), round(after / weights, 1))
        for op, most, after in zip(ops, recorder.most_bytes(), recorder.held_bytes(), strict=True)
    ]


def test_a_step_holds_gradients_and_the_version_that_it_keeps():
    ops = [forward(0, 0), forward(0, 1), backward(0, 0), Step(0), backward(0, 1), Step(0)]
    assert sizes(ops) == [
        ("0F0", 1.0, 1.0), ("0F1", 1.0, 1.0),
        ("0B0", 2.0, 2.0),  # weights and gradients
        ("0STEP", 3.0, 2.0),  # and a copy of version 0; then the gradients are gone
        ("0B1", 2.0, 2.0),  # version 0 was read for the last time
        ("0STEP", 2.0, 1.0),
    ]  # fmt: skip


def test_an_op_on_predicted_weights_holds_a_copy_and_at_its_end_the_gradients_too():
    ahead = [Compute(phase, 0, 1, version=1, lookahead=1) for phase in (Phase.FORWARD, Phase.BACKWARD)]
    bytes_of_ops = sizes(
        [forward(0, 0), backward(0, 0), Step(0), *ahead, Step(0)],
        optimizer="momentum",
        prediction=PredictionRule.MOMENTUM,
    )
    assert bytes_of_ops == [
        ("0F0", 2.0, 2.0),  # weights and momentum
        ("0B0", 3.0, 3.0), ("0STEP", 3.0, 2.0),
        ("0F1@1+1", 3.0, 2.0),
        ("0B1@1+1", 4.0, 3.0), ("0STEP", 3.0, 2.0),
    ]  # fmt: skip


def _num_tensors():
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
