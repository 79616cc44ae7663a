"""Steps that no profiler has marked: never are two of them one iteration."""

import pytest

import pipesched
from pipesched.profiles import ProfileError
from pipesched.profiles.traces import read_traces
from pipesched.schedules.builders import CATALOGUE
from pipesched.simulator.analysis import metrics
from tests.profiles.traces.chrome_files import complete, lane, pipeline, pippy_name, write
from tests.schedules.builder_rules import kinds

COUNTED = "^(?P<phase>[FB])$"
GLOBAL = r"^(?P<phase>[FB])(?P<microbatch>\d+) of stage (?P<stage>\d+)$"


def counted(rank, phase, microbatch):
    return phase


def numbered(rank, phase, microbatch):
    return f"{phase}{microbatch} of stage {rank}"


def steps(counts=(4, 4), num_stages=2, pause_us=5000, going_on=False):
    """Return the passes of steps of so many micro-batches, with a pause of every rank between two."""
    passes, start_us, first = [], 1000, 0
    for count in counts:
        own = pipeline(num_stages, count, start_us, first)
        passes += own
        start_us = max(end for *_, end in own) + pause_us
        first += count if going_on else 0
    return passes


def optimizers(passes, num_stages, after, name="Optimizer.step#SGD.step"):
    """Return an optimizer of 1 ms on every rank after these backwards of it."""
    events = []
    for rank in range(num_stages):
        ends = [end for own, phase, *_, end in passes if own == rank and phase == "B"]
        events += [{"name": name, "ph": "X", "ts": ends[place - 1], "dur": 1000} | lane(rank) for place in after]
    return events


def figures(read):
    """Return the step, its number of micro-batches, makespan [ms] and bubble [%]."""
    totals = metrics(read.timeline)
    return (
        read.step,
        read.schedule.num_microbatches,
        round(totals.makespan_s * 1e3),
        round(100 * totals.bubble_fraction),
    )


def refusal(path, **keywords):
    with pytest.raises(ProfileError) as caught:
        read_traces([path], **keywords)
    return str(caught.value)


# four micro-batches on two stages: (4 + 1) * 30 ms, 1 of 5 idle; on three: (4 + 2) * 30, 2 of 6
ONE_STEP = {2: (4, 150, 20), 3: (4, 180, 33)}


@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("pause_us", [0, 5000])
@pytest.mark.parametrize(
    ("name", "pattern", "going_on"),
    [(counted, COUNTED, False), (numbered, GLOBAL, False), (numbered, GLOBAL, True), (pippy_name, None, False)],
    ids=["counted", "numbers that restart", "numbers that go on", "known names"],
)
def test_two_steps_are_two_whatever_their_names_say(tmp_path, num_stages, pause_us, name, pattern, going_on):
    passes = steps((4, 4), num_stages, pause_us, going_on)
    path = write(tmp_path / "all.json", complete(passes, name))
    patterns = [] if pattern is None else [pattern]
    for step in (0, 1):
        assert figures(read_traces([path], patterns=patterns, step=step)) == (step, *ONE_STEP[num_stages])
    read = read_traces([path], patterns=patterns)
    assert figures(read) == (1, *ONE_STEP[num_stages])
    assert "2 steps, found by optimizers, names or flushes; read step 1, the last whole one" in read.notes


def test_steps_of_other_lengths_are_told_apart(tmp_path):
    for name, pattern in ((counted, COUNTED), (numbered, GLOBAL)):
        path = write(tmp_path / "all.json", complete(steps((2, 5, 3)), name))
        read = [figures(read_traces([path], patterns=[pattern], step=step)) for step in range(3)]
        assert read == [(0, 2, 90, 33), (1, 5, 180, 17), (2, 3, 120, 25)]  # (m + 1) * 30 ms, 1 of m + 1


@pytest.mark.parametrize(("name", "pattern"), [(counted, COUNTED), (numbered, GLOBAL)])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_step_that_is_cut_off_is_not_read(tmp_path, name, pattern, is_first):
    passes = steps((4, 4, 4))
    begin_us, end_us = (60_000, 10**9) if is_first else (0, 400_000)
    kept = [work for work in passes if begin_us <= work[3] and work[4] <= end_us]
    assert 16 < len(kept) < len(passes)
    path = write(tmp_path / "all.json", complete(kept, name))
    assert figures(read_traces([path], patterns=[pattern]))[1:] == ONE_STEP[2]


def test_ranks_with_other_numbers_of_steps_have_those_in_common_that_ran_at_the_same_time(tmp_path):
    for name, pattern in ((counted, COUNTED), (numbered, GLOBAL)):
        passes = steps((2, 4, 3))
        second_step_us = next(
            start for rank, phase, number, start, _ in passes[8:] if (rank, phase, number) == (0, "F", 0)
        )
        files = [
            write(tmp_path / "0.json", complete([work for work in passes if work[0] == 0], name)),
            write(
                tmp_path / "1.json", complete([work for work in passes if work[0] and work[3] > second_step_us], name)
            ),
        ]
        assert figures(read_traces(files, patterns=[pattern]))[1:] == (3, 120, 25)
        assert figures(read_traces(files, patterns=[pattern], step=1))[1:] == (4, 150, 20)
        with pytest.raises(ProfileError, match=r"1\.json: step: got 0, expected a step of this trace: 2, 1"):
            read_traces(files, patterns=[pattern], step=0)


def test_ranks_with_other_numbers_of_steps_on_clocks_that_have_nothing_in_common_are_refused(tmp_path):
    first, second = steps((2, 4, 3)), steps((4, 3))
    late = [(rank, phase, number, start + 10**9, end + 10**9) for rank, phase, number, start, end in second]
    files = [
        write(tmp_path / f"{rank}.json", complete([work for work in own if work[0] == rank], counted))
        for rank, own in enumerate((first, late))
    ]
    with pytest.raises(ProfileError, match=r"1\.json: got another number of passes than on other ranks"):
        read_traces(files, patterns=[COUNTED])


@pytest.mark.parametrize("optimizer", ["Optimizer.step#SGD.step", "optimizer_step", "OptimizerStep"])
def test_optimizers_tell_steps_of_one_micro_batch(tmp_path, optimizer):
    passes = steps((1, 1, 1), pause_us=1000)
    events = complete(passes, counted) + optimizers(passes, 2, (1, 2, 3), optimizer)
    read = read_traces([write(tmp_path / "all.json", events)], patterns=[COUNTED])
    assert figures(read)[:3] == (2, 1, 61)  # two stages one after the other, and the optimizer of the first
    assert sum(str(span.op).endswith("STEP") for span in read.timeline.spans) == 2


def test_two_flushes_before_one_optimizer_are_one_step(tmp_path):
    """Names do not come again, and the optimizer says that all four micro-batches are of one step."""
    passes = steps((2, 2), pause_us=0)
    events = complete(passes, counted) + optimizers(passes, 2, (4,))
    assert figures(read_traces([write(tmp_path / "all.json", events)], patterns=[COUNTED]))[1] == 4


def test_a_flush_after_every_micro_batch_is_refused_unless_something_tells_the_steps(tmp_path):
    path = write(tmp_path / "all.json", complete(steps((1, 1, 1, 1), pause_us=0), counted))
    assert "got a flush after every micro-batch" in refusal(path, patterns=[COUNTED])
    assert figures(read_traces([path], patterns=[COUNTED], step=2)) == (2, 1, 60, 50)
    naive = pipesched.build("naive", 2, 4)
    assert figures(read_traces([path], patterns=[COUNTED], schedule=naive)) == (0, 4, 240, 50)
    of_two = pipesched.build("naive", 2, 2)
    assert figures(read_traces([path], patterns=[COUNTED], schedule=of_two)) == (1, 2, 120, 50)
    paused = steps((1, 1), pause_us=0)
    later = [(*work[:3], work[3] + 140_000, work[4] + 140_000) for work in paused]
    path = write(tmp_path / "all.json", complete([*paused, *later], counted))
    assert figures(read_traces([path], patterns=[COUNTED])) == (1, 2, 120, 50)
    named = write(tmp_path / "named.json", complete(steps((1, 1, 1, 1), pause_us=0, going_on=True)))
    assert figures(read_traces([named])) == (0, 4, 240, 50)


def test_a_schedule_says_how_many_passes_a_step_has(tmp_path):
    path = write(tmp_path / "all.json", complete(steps((4, 4)), counted))
    read = read_traces([path], patterns=[COUNTED], schedule=pipesched.build("1f1b", 2, 4))
    assert figures(read) == (1, *ONE_STEP[2])


SYNCHRONOUS = [name for name in kinds() if not CATALOGUE[name].traits.is_asynchronous and name not in ("avgpipe",)]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", *SYNCHRONOUS])
@pytest.mark.parametrize("num_steps", [1, 2])
def test_a_step_of_any_schedule_is_one_and_two_are_two(tmp_path, name, num_steps):
    costs = pipesched.DeviceCost(forward_s=1e-3, backward_s=2e-3, backward_input_s=1e-3, backward_weight_s=1e-3)
    predicted = pipesched.simulate(pipesched.build(name, 4, 8), costs)
    work = [span for span in predicted.timeline.work if span.op.__class__.__name__ in ("Compute", "Overlap")]
    events = [
        {"name": f"PP:{span.op}", "ph": "X", "pid": span.rank, "tid": 0}
        | {"ts": (span.start_s + step * predicted.makespan_s) * 1e6, "dur": (span.end_s - span.start_s) * 1e6}
        for step in range(num_steps)
        for span in work
    ]
    read = read_traces([write(tmp_path / "all.json", events)])
    assert (read.step, read.schedule.num_microbatches) == (num_steps - 1, 8)
    assert read.timeline.makespan_s == pytest.approx(max(s.end_s for s in work) - min(s.start_s for s in work))
