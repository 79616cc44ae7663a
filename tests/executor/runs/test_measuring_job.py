"""Several processes over gloo, started as the command line does, against the model in one piece."""

from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file

from pipesched.executor.runs import launch, whole_model_losses
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.profiles.processes import num_cores
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Recv, Send, computes, needs
from tests.executor.pipelines import MLP, assert_equal, job, whole_model

pytestmark = pytest.mark.distributed


def saved(folder, num_stages):
    """Every parameter of the model, in order of stages and of names as the module lists them."""
    tensors = []
    for stage in range(num_stages):
        held = load_file(folder / f"stage{stage}.safetensors")
        # "0.linear.weight": by layer, then weight before bias as in nn.Linear
        order = sorted(held, key=lambda name: (int(name.split(".")[0]), name.endswith("bias")))
        tensors += [held[name] for name in order]
    return tensors


def test_losses_and_weights_are_those_of_the_whole_model(tmp_path):
    schedule = build("interleaved", 2, 4, num_chunks=2)
    todo = job(schedule, iterations=2, save=str(tmp_path / "weights"))
    measured = launch(todo)
    module, inputs, targets, loss = whole_model(MLP, 2 * schedule.num_microbatches)
    plain = torch.optim.SGD(module.parameters(), 0.05)
    cut = range(0, len(inputs), 2)
    expected = [loss(module(inputs[i : i + 2]), targets[i : i + 2]).item() for i in cut]
    for _ in range(2):
        plain.zero_grad()
        loss(module(inputs), targets).backward()
        plain.step()
    assert measured.losses == pytest.approx(expected, rel=1e-12)
    assert whole_model_losses(todo) == pytest.approx(expected, rel=1e-12)
    assert_equal(saved(tmp_path / "weights", schedule.num_stages), (p.detach() for p in module.parameters()))
    assert len(measured.makespans_s) == 2


@pytest.fixture(scope="module")
def measured():
    """One run of a pipeline with activations that stand out from the heap's small change."""
    ticks = []
    todo = job(
        build("1f1b", 2, 4), "mlp:layers=4,width=64", microbatch_size=256, iterations=2, warmup=1, optimizer="adam"
    )
    return launch(todo, ticks.append), ticks


def test_spans_are_ordered(measured):
    timeline = measured[0].timeline
    assert timeline.source == "measured"
    assert [span.rank for span in timeline.spans] == sorted(span.rank for span in timeline.spans)
    for span in timeline.spans:
        assert span.posted_s <= span.start_s <= span.end_s
    for rank in range(2):
        work = [span for span in timeline.of_rank(rank) if not isinstance(span.op, Send | Recv)]
        assert all(a.end_s <= b.posted_s for a, b in pairwise(work))
        posts = [span.posted_s for span in timeline.of_rank(rank)]
        assert posts == sorted(posts)


def test_no_transfer_starts_before_both_sides_posted_or_ends_after_its_use(measured):
    timeline = measured[0].timeline
    sends = {span.op.message: span for span in timeline.spans if isinstance(span.op, Send)}
    recvs = {span.op.message: span for span in timeline.spans if isinstance(span.op, Recv)}
    assert sends.keys() == recvs.keys()
    assert len(sends) == 8
    for message, send in sends.items():
        recv = recvs[message]
        assert send.start_s == recv.start_s == max(send.posted_s, recv.posted_s)
        assert send.end_s == recv.end_s
    for span in timeline.spans:
        for part in computes(span.op):
            for message in needs(part, 2):
                if message in recvs:
                    assert recvs[message].end_s <= max(span.start_s, recvs[message].start_s)


def test_memory_was_sampled_and_returns_to_the_resident_level(measured):
    timeline = measured[0].timeline
    activation, weights = 256 * 64 * 8, 2 * (64 * 64 + 64) * 8
    resident = 3 * weights  # and Adam's two moments
    # rank 1's last two gradients stay until they are known to have arrived: no message comes after their use
    for device, in_flight, unproven in ((0, 2, 0), (1, 1, 2)):
        held = [sample.total_bytes for sample in timeline.memory if sample.device == device]
        assert max(held) > resident + in_flight * activation
        assert abs(held[-1] - resident - unproven * activation) < activation / 2


def test_progress_is_told_and_never_goes_back(measured):
    ticks = measured[1]
    assert ticks == sorted(ticks)
    num_ops = 3 * sum(map(len, lower(build("1f1b", 2, 4)).ops))  # of a warm-up and two iterations
    assert {round(tick * num_ops) / num_ops for tick in ticks} == set(ticks)
    assert 0 <= ticks[0] < ticks[-1] <= 1


def test_the_median_run_is_the_timeline(measured):
    run = measured[0]
    assert run.timeline.makespan_s == pytest.approx(min(run.makespans_s), rel=1e-9)
    yardstick = run.timeline.yardstick
    assert (yardstick.device, yardstick.num_busy) == ("cpu", min(2, num_cores()))
    assert yardstick.kernel_s > 0


@pytest.mark.parametrize("how", ["sleep", "busy"])
def test_emulated_stages_take_at_least_their_time_with_messages_of_their_size(how):
    cost = StageCost(0.004, 0.006, step_s=0.002, output_bytes=100_000)
    costs = StageCosts((cost,) * 2, origin="by hand")
    run = launch(job(build("1f1b", 2, 4), None, emulate=costs, how=how, dtype="float32"))
    seconds = {"F": 0.004, "B": 0.006}
    for span in run.timeline.work:
        parts = computes(span.op)
        least = sum(seconds[part.phase.value] for part in parts) if parts else 0.002
        assert span.end_s - span.start_s >= least - 1e-12  # one subtraction of seconds in floating point
    assert len(run.timeline.work) == 2 * (4 + 4 + 1)
    assert run.losses == ()
    assert run.timeline.makespan_s >= (4 + 1) * 0.010 + 0.002
    assert run.timeline.memory == ()  # they hold nothing of what the costs speak of
    assert run.timeline.yardstick is None  # nor does what they take depend on the machine
