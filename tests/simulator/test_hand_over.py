"""What handing over costs, against closed forms (LogGP: o at both ends) and a loop that shares no code with ours."""

import random
from dataclasses import replace

import pytest

from pipesched.profiles.clusters import Device, Link, flat, with_slow_device
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Message, Payload, Phase, Recv, Send, forward
from pipesched.simulator.engine import simulate_lists
from tests.schedules.edits import without_steps

F_S, B_S, BYTES, TRAVEL_S = 1.0, 2.0, 100, 0.35
LINK = Link(0.1, 400.0, send_s=0.02, send_s_per_byte=1e-4, post_s=0.005, receive_s=0.01, receive_s_per_byte=3e-4)
SEND_S, POST_S, RECEIVE_S, OP_S = 0.03, 0.005, 0.04, 0.007


def cluster(num_devices, link=LINK, op_s=OP_S):
    return replace(flat(num_devices, link), devices=(Device(op_s=op_s),) * num_devices)


def costs(num_stages, **changes):
    return StageCosts((StageCost(F_S, B_S, output_bytes=BYTES, **changes),) * num_stages)


def test_a_message_between_two_ranks_costs_both_of_them():
    timeline = simulate_lists(without_steps(build("gpipe", 2, 1)), costs(2), cluster(2))
    handed_s = OP_S + SEND_S + TRAVEL_S + RECEIVE_S
    assert timeline.makespan_s == pytest.approx(2 * (F_S + B_S) + 2 * handed_s + OP_S, rel=1e-12)


@pytest.mark.parametrize("num_microbatches", [1, 5])
@pytest.mark.parametrize("num_ranks", [3, 6])
def test_a_pipeline_of_many_ranks_has_the_hand_over_at_both_ends_in_every_cycle(num_ranks, num_microbatches):
    """A rank between others takes and sends each micro-batch: its cycle is what the last one waits for.

    All its Recvs of a phase are posted before the first of its messages comes, while it waits.
    """
    forward_s = (
        (F_S + OP_S + SEND_S + TRAVEL_S)
        + (num_ranks - 2) * (RECEIVE_S + F_S + OP_S + SEND_S + TRAVEL_S)
        + (num_microbatches - 1) * (RECEIVE_S + F_S + OP_S + SEND_S)
        + (RECEIVE_S + F_S)
    )
    backward_s = (
        (OP_S + B_S + OP_S + SEND_S + TRAVEL_S)
        + (num_ranks - 2) * (RECEIVE_S + B_S + OP_S + SEND_S + TRAVEL_S)
        + (num_microbatches - 1) * (RECEIVE_S + B_S + OP_S + SEND_S)
        + (RECEIVE_S + B_S)
    )
    schedule = without_steps(build("gpipe", num_ranks, num_microbatches))
    timeline = simulate_lists(schedule, costs(num_ranks), cluster(num_ranks))
    assert timeline.makespan_s == pytest.approx(forward_s + backward_s, rel=1e-12)


def makespan_by_hand(rows, seconds, num_stages, travel_s):
    """Ask the ranks in turn; messages are those of the op's two neighbours, and links are wide."""
    now, at, left, asked, end_s = [0.0] * len(rows), [0] * len(rows), {}, {}, 0.0
    while any(at[rank] < len(row) for rank, row in enumerate(rows)):
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                op = row[at[rank]]
                if isinstance(op, Send | Recv):
                    now[rank] += SEND_S if isinstance(op, Send) else POST_S
                    (left if isinstance(op, Send) else asked)[str(op.message)] = now[rank]
                else:
                    messages = [str(m) for m in neighbours(op, num_stages) if str(m) in posted_by(row)]
                    if any(message not in left for message in messages):
                        break
                    for message in messages:
                        now[rank] = max(now[rank], max(left[message], asked[message]) + travel_s) + RECEIVE_S
                    now[rank] += seconds[op.phase, op.stage]
                    end_s = max(end_s, now[rank])
                    now[rank] += OP_S
                at[rank] += 1
    return end_s


def neighbours(op, num_stages):
    match op.phase:
        case Phase.FORWARD if op.stage > 0:
            return [Message(Payload.ACTIVATION, op.stage - 1, op.microbatch)]
        case Phase.BACKWARD | Phase.BACKWARD_INPUT if op.stage + 1 < num_stages:
            return [Message(Payload.GRADIENT, op.stage + 1, op.microbatch)]
        case _:
            return []


def posted_by(row):
    return {str(op.message) for op in row if isinstance(op, Recv)}


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb_h1", "hanayo"])
@pytest.mark.parametrize("seed", range(2))
def test_a_loop_of_its_own_comes_to_the_same_makespan(name, seed):
    chance = random.Random(seed)
    schedule = without_steps(lower(build(name, 3, 6)))
    stages = tuple(
        StageCost(chance.random(), None, chance.random(), chance.random()) for _ in range(schedule.num_stages)
    )
    seconds = {
        (phase, stage): StageCosts(stages).seconds(Compute(phase, stage, 0))
        for stage in range(schedule.num_stages)
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
    }
    link = Link(0.2, send_s=SEND_S, post_s=POST_S, receive_s=RECEIVE_S)
    timeline = simulate_lists(schedule, StageCosts(stages), cluster(3, link))
    by_hand_s = makespan_by_hand(schedule.ops, seconds, schedule.num_stages, 0.2)
    assert timeline.start_s + timeline.makespan_s == pytest.approx(by_hand_s, rel=1e-12)


def test_what_handing_over_took_is_in_the_timeline():
    timeline = simulate_lists(without_steps(build("gpipe", 2, 1)), costs(2), cluster(2))
    seconds = [(h.rank, str(h.op), round(h.end_s - h.start_s, 9)) for h in timeline.hand_overs]
    assert seconds == [
        (0, "0F0", OP_S), (0, "0SEND_F0", SEND_S), (0, "0RECV_B0", POST_S), (0, "0B0", RECEIVE_S), (0, "0B0", OP_S),
        (1, "1RECV_F0", POST_S), (1, "1F0", RECEIVE_S), (1, "1F0", OP_S), (1, "1B0", OP_S), (1, "1SEND_B0", SEND_S),
    ]  # fmt: skip


def test_a_straggler_hands_over_slowly_too():
    schedule = without_steps(build("gpipe", 2, 1))
    slow_s = simulate_lists(schedule, costs(2), with_slow_device(cluster(2), 0, 3.0)).makespan_s
    own_s = F_S + B_S + OP_S + SEND_S + RECEIVE_S
    usual_s = simulate_lists(schedule, costs(2), cluster(2)).makespan_s
    assert slow_s - usual_s == pytest.approx(2 * own_s, rel=1e-9)


def test_a_post_slows_what_another_rank_computes_on_the_same_device():
    """Rank 2 computes for 3 s on rank 0's device, whose F and Send of 1 s each run beside it at half the speed."""
    message = Message(Payload.ACTIVATION, 0, 0)
    lists = ((forward(0, 0), Send(message, 1)), (Recv(message, 0), forward(1, 0)), (forward(0, 1),))
    schedule = Schedule("by hand", 2, 2, lists, (0, 1, 0))
    stages = StageCosts((StageCost(1.0), StageCost(1.0)))
    link = Link(send_s=1.0)
    timeline = simulate_lists(schedule, stages, flat(2, link))
    ends = {(span.rank, str(span.op)): span.end_s for span in timeline.spans}
    assert ends[0, "0F0"] == ends[2, "0F1"] == pytest.approx(2.0)
    assert ends[1, "1F0"] == pytest.approx(4.0)
    busy = replace(stages, stages=(StageCost(1.0, utilisation=0.5), StageCost(1.0)))
    timeline = simulate_lists(schedule, busy, flat(2, link))
    assert timeline.makespan_s == pytest.approx(3.0)
