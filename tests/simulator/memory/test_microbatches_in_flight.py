from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules import ScheduleError, make_schedule
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.ops import Compute, Phase, backward, backward_input, backward_weight, computes, forward
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import InFlight, in_flight, peaks_in_flight
from tests.properties import examples
from tests.schedules.hand_schedules import replicated, v_shaped

SPLIT = StageCost(1.0, None, 1.0, 1.0, output_bytes=2, saved_bytes=8, saved_for_weight_bytes=3)


def counted(timeline, schedule, device, time_s, for_weight):
    """What is in flight at one instant, by looking at every span."""
    begins, ends = {}, {}
    for span in timeline.spans:
        if timeline.rank_to_device[span.rank] == device:
            for part in computes(span.op):
                begins[part.stage, part.microbatch, part.phase] = span.start_s
                ends[part.stage, part.microbatch, part.phase] = span.end_s
    total = Fraction(0)
    for stage, microbatch, phase in begins:
        if phase is Phase.FORWARD:
            whole, last = Phase.BACKWARD, Phase.BACKWARD
            if (stage, microbatch, whole) not in ends:
                whole, last = Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT
            if begins[stage, microbatch, phase] <= time_s < ends[stage, microbatch, whole]:
                total += 1
            elif ends[stage, microbatch, whole] <= time_s < ends[stage, microbatch, last]:
                total += for_weight
    return float(total * schedule.num_devices / schedule.num_stages)


@examples(25)
@given(data=st.data(), name=st.sampled_from(sorted(CATALOGUE)), p=st.integers(1, 4), m=st.integers(1, 8))
def test_at_every_change_the_count_is_that_of_the_spans(data, name, p, m):
    try:
        schedule = build(name, p, m)
    except ScheduleError:
        return  # these counts are not for this schedule
    costs = StageCosts((SPLIT,) * schedule.num_stages)
    timeline = simulate_lists(schedule, costs, jitter=data.draw(st.sampled_from([0.0, 0.3])))
    samples = in_flight(timeline, costs, schedule)
    assert peaks_in_flight(timeline, costs, schedule) == {
        device: max((sample for sample in samples if sample.device == device), key=lambda sample: sample.microbatches)
        for device in range(p)
    }
    for sample in data.draw(st.permutations(samples))[:20]:
        expected = counted(timeline, schedule, sample.device, sample.time_s, Fraction(3, 8))
        assert sample.microbatches == expected


WORST = {
    "naive": lambda p, m: 1,
    "gpipe": lambda p, m: m,
    "1f1b": lambda p, m: p,
    "1f1b_afp": lambda p, m: p + 1,
    "avgpipe": lambda p, m: 2 * (p + 1),  # two pipelines on each device
    "interleaved": lambda p, m: p * (1 + (p - 1) / (p * 2)),  # arXiv:2205.05198, of two chunks
    "looped_bfs": lambda p, m: m,
    "zb_h1": lambda p, m: p,
    "zb_h2": lambda p, m: 2 * p - 1,
    "zb_auto": lambda p, m: p,  # its limit
    "interleaved_zb": lambda p, m: p,
    "zbv": lambda p, m: p,  # 2 p chunks, two per rank
    "v_half": lambda p, m: (p + 2) // 2,
    "v_min": lambda p, m: (p + 4) // 3,
    "dualpipe": lambda p, m: p + 1,
    "dualpipe_v": lambda p, m: (2 * p + 1) / 2,  # DualPipe's rule for 2 p stages, two per rank
    "chimera": lambda p, m: p,
    "gems": lambda p, m: 1,
    "hanayo": lambda p, m: p,
    "data_parallel": lambda p, m: p,  # one, of the whole model
}


def test_every_schedule_with_a_flush_has_its_worst_peak():
    assert {*WORST} == {name for name, entry in CATALOGUE.items() if not entry.traits.is_asynchronous}


@pytest.mark.parametrize("p", [4, 6])
@pytest.mark.parametrize("name", WORST)
def test_the_worst_peak_is_that_of_the_papers_where_nothing_is_known_of_w(name, p):
    schedule = build(name, p, 4 * p)
    costs = uniform(schedule.num_stages, 1.0, 2.0, 1.0, 1.0)
    peaks = peaks_in_flight(simulate_lists(schedule, costs), costs, schedule)
    assert max(peak.microbatches for peak in peaks.values()) == WORST[name](p, 4 * p)


def test_a_chunk_is_a_part_of_a_microbatch():
    schedule = v_shaped()  # two stages on each of two ranks
    costs = uniform(4, 1.0, 1.0)
    peaks = peaks_in_flight(simulate_lists(schedule, costs), costs, schedule)
    assert {device: peak.microbatches for device, peak in peaks.items()} == {0: 1.5, 1: 2.0}


def test_ranks_of_one_device_are_added_up():
    schedule = replicated()  # two pipelines of two stages on two devices
    costs = uniform(2, 1.0, 1.0)
    peaks = peaks_in_flight(simulate_lists(schedule, costs), costs, schedule)
    assert {device: peak.microbatches for device, peak in peaks.items()} == {0: 2.0, 1: 2.0}


def test_before_its_recompute_a_microbatch_counts_by_its_input():
    ops = [forward(0, 0), forward(1, 0), Compute(Phase.RECOMPUTE, 1, 0), backward_input(1, 0), backward_weight(1, 0)]
    schedule = make_schedule("r", 2, 1, [[*ops, backward(0, 0)]])
    costs = StageCosts((StageCost(1.0, 1.0, output_bytes=2, saved_bytes=8), SPLIT))
    samples = in_flight(simulate_lists(schedule, costs), costs, schedule)
    half = 0.5  # two stages on one device
    assert samples == tuple(
        InFlight(0, time_s, half * count)
        for time_s, count in [(0, 1), (1, 1 + 2 / 8), (2, 1 + 1), (4, 1 + 3 / 8), (5, 1), (6, 0)]
    )


def test_a_microbatch_that_comes_and_goes_at_one_time_is_counted_on_the_way():
    costs = StageCosts((StageCost(0.0, 0.0),))
    schedule = make_schedule("instant", 1, 2, [[forward(0, 0), forward(0, 1), backward(0, 1), backward(0, 0)]])
    assert in_flight(simulate_lists(schedule, costs), costs, schedule) == (InFlight(0, 0.0, 2.0), InFlight(0, 0.0, 0.0))


def test_shares_without_a_small_common_unit_are_exact_also_where_loops_are_compiled(monkeypatch):
    """Shares of three primes of bytes have a unit beyond 64 bits; the count is the sum of the fractions."""
    saved = [2**61 - 1, 2**31 - 1, 10**9 + 7]
    costs = StageCosts(
        tuple(StageCost(1.0, None, 1.0, 1.0, saved_bytes=part, saved_for_weight_bytes=part // 3) for part in saved)
    )
    schedule = build("zb_h1", 3, 4)
    timeline = simulate_lists(schedule, costs)
    plain = in_flight(timeline, costs, schedule)
    monkeypatch.setattr("pipesched.schedules.columns.machine_code._steps_run", 10**12)
    assert in_flight(timeline, costs, schedule) == plain
    for sample in plain:
        for_weight = Fraction(saved[sample.device] // 3, saved[sample.device])  # a rank is a stage and a device
        expected = counted(timeline, schedule, sample.device, sample.time_s, for_weight)
        assert sample.microbatches == pytest.approx(expected, rel=1e-15)
