"""The memory that the simulator predicts for a run against what the allocator gives out."""

import gc
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from pipesched.executor.core import Batch, HostClock, Recorder, begin, end, execute_rank
from pipesched.executor.core.memory_meter import make_meter
from pipesched.executor.runs import launch
from pipesched.executor.transport import LocalTransport
from pipesched.profiles.clusters import flat
from pipesched.profiles.measuring import ProfilerSettings, profile_model
from pipesched.profiles.models import resolve_model
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.semantics import Acknowledgements
from pipesched.schedules.transforms import recompute
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory, peak_memory
from pipesched.simulator.tuner import Accounting, predict_setting, profile_setting
from tests.executor.pipelines import Local, even_bounds, job
from tests.executor.recurrences import SCHEMES, at_least

pytestmark = pytest.mark.skipif(make_meter(torch.device("cpu")) is None, reason="this allocator cannot be asked")

MODEL, SAMPLES, D = "mlp:layers=8,width=256", 24, 4
MODELS = {  # with the samples of a batch
    "gpt": ("gpt:layers=4,width=64,heads=4,context=64", 32),
    "conv": ("conv:channels=16,blocks=4,image=16", 64),
    "lstm": ("lstm:layers=4,width=64,context=16", 64),
}
CARRIED = "tests.executor.tuple_models:carried:layers=8,width=256"


class Network(LocalTransport):
    """Both ends have a tensor of their own; the sender lets go of its own as it does over a real network."""

    def __init__(self, rank, room, lists, num_stages, under_way):
        super().__init__(rank, room)
        self._under_way = under_way  # the network's own memory for every message; from the second run on it stays
        self._proofs = {
            message: (peer, count)
            for peer, ops in enumerate(lists)
            if peer != rank
            for message, count in Acknowledgements(ops, peer, rank, num_stages)
        }
        self._buffers, self._sent = {}, defaultdict(list)

    def send(self, op, tensor):
        self._sent[op.peer].append(tensor)
        between = self._under_way.setdefault(op.message, torch.empty_like(tensor))
        super().send(op, between.copy_(tensor))

    def post(self, op):
        if op.message in self._under_way:
            self._buffers[op.message] = torch.empty_like(self._under_way[op.message])
        super().post(op)

    def take(self, message):
        sent = super().take(message)
        if sent is None:
            return None
        peer, count = self._proofs[message]
        self._sent[peer][:count] = [None] * count
        return self._buffers.pop(message).copy_(sent) if message in self._buffers else sent.clone()

    def flush(self):
        self._sent.clear()


def network(schedule):
    lowered = lower(schedule)
    return partial(Network, lists=lowered.ops, num_stages=lowered.num_stages, under_way={})


class Drawn:
    """Data that comes when it is asked for."""

    def __init__(self, tensors):
        self._tensors = tensors

    def __getitem__(self, index):
        return self._tensors[index].clone()


def drawn(batch):
    return Batch(Drawn(batch.inputs), Drawn(batch.targets))


@cache
def measured(model, *sizes, **options):
    settings = ProfilerSettings(microbatch_sizes=sizes, repeats=1, warmup=1, **options)
    return profile_model(resolve_model(model), settings)


def run_by_turns(ranks, batch):
    for rank in ranks:
        with rank.recorder.turn():
            begin(rank)
    waiting = [(rank, execute_rank(rank, batch)) for rank in ranks]
    while waiting:
        for turn in list(waiting):
            rank, program = turn
            with rank.recorder.turn():
                if next(program, None) is None:
                    waiting.remove(turn)
    for rank in ranks:
        with rank.recorder.turn():
            end(rank)


def held_by_turns(schedule, model, size):
    """Return what each device holds at most, if its ranks do at the same time."""
    run = Local(
        schedule, model, optimizer="adamw", size=size, transport=network(schedule), dtype=torch.float32,
        bounds=even_bounds(len(resolve_model(model).layers), schedule.num_stages),
    )  # fmt: skip
    run.ranks = [replace(rank, recorder=Recorder(HostClock(), make_meter(torch.device("cpu")))) for rank in run.ranks]
    gc.collect()
    for _ in range(2):  # the optimizers make their state in the first
        run_by_turns(run.ranks, drawn(run.batch))
    held = Counter()
    for rank in run.ranks:
        held[schedule.rank_to_device[rank.rank]] += max(rank.recorder.most_bytes())
    return held


def averaged(num_microbatches, num_pipelines):
    """Return the lists of pipelines with a batch each, side by side on two devices."""
    return lower(build("avgpipe", 2, num_microbatches * num_pipelines, pipelines=num_pipelines, advance=0))


def simulated(profile, schedule, size):
    """Return an iteration, with what each device holds, and the costs."""
    costs = profile.costs_of_layers(even_bounds(len(profile.layers), schedule.num_stages), size)
    timeline = simulate_lists(schedule, costs, flat(schedule.num_ranks))
    return replace(timeline, memory=memory(timeline, costs, schedule)), costs


def peaks(timeline):
    return {device: peak.total_bytes for device, peak in peak_memory(timeline.memory).items()}


ALONE = [name for name in SCHEMES if name != "1f1b_rr"]
"""Schemes without replicas: in one process the sum of replicas is held by the first that comes to it."""


@pytest.mark.parametrize(("name", "recomputes"), [*((name, False) for name in (*ALONE, "avgpipe")), ("xpipe", True)])
def test_the_peak_of_each_device_is_within_five_percent_of_what_is_allocated(name, recomputes):
    schedule = build(name, D, at_least(12, name, D))
    schedule = lower(recompute(schedule) if recomputes else schedule)
    held = held_by_turns(schedule, MODEL, SAMPLES)
    assert peaks(simulated(measured(MODEL, SAMPLES), schedule, SAMPLES)[0]) == pytest.approx(held, rel=0.05)


@pytest.mark.parametrize(
    ("model", "num_microbatches", "num_pipelines"),
    [("gpt", 1, 1), ("gpt", 4, 2), ("gpt", 8, 1), ("conv", 4, 2), ("lstm", 4, 2)],
)
def test_each_device_holds_what_was_predicted(model, num_microbatches, num_pipelines):
    """By the simulation, and on the fullest device by AvgPipe's Eq. 8 from the most micro-batches in one pipeline."""
    text, batch = MODELS[model]
    profile = measured(text, *{batch // num_microbatches, batch // 8})
    schedule, size = averaged(num_microbatches, num_pipelines), batch // num_microbatches
    held = held_by_turns(schedule, profile.model, size)
    assert peaks(simulated(profile, schedule, size)[0]) == pytest.approx(held, rel=0.05)
    setting = profile_setting(*simulated(profile, averaged(8, 1), batch // 8), 1)
    prediction = predict_setting(setting, num_microbatches, num_pipelines, Accounting.CONSISTENT)
    assert prediction.held_bytes == pytest.approx(max(held.values()), rel=0.05)


@pytest.mark.distributed
@pytest.mark.parametrize(("model", "name", "size"), [(MODELS["conv"][0], "1f1b", 16), (CARRIED, "zb_h1", 256)])
def test_each_process_holds_what_was_predicted(model, name, size):
    require_predicted(lower(build(name, 2, 4)), model, size)


@pytest.mark.distributed
@pytest.mark.parametrize(("name", "num_ranks"), [("xpipe", 2), ("wpipe", 2), ("1f1b_rr", 3)])
def test_each_process_holds_the_copies_that_were_predicted(name, num_ranks):
    """Gradients and the version that a Step keeps are together inside it alone, a predicted copy is inside its op.

    Weights outweigh all else.
    """
    require_predicted(lower(build(name, num_ranks, 8)), "mlp:layers=8,width=256", 2)


def require_predicted(schedule, model, size):
    profile = measured(model, size)
    predicted = peaks(simulated(profile, schedule, size)[0])
    asked = job(schedule, model, microbatch_size=size, dtype="float32", optimizer="adamw", warmup=1)
    assert predicted == pytest.approx(peaks(launch(asked).timeline), rel=0.05)
