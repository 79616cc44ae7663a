"""Builders of the user's own: what they may take and return, and how what they do wrong is told."""

import os
import pickle

import numpy as np
import pytest

import pipesched
from pipesched.questions import ScheduleCounts
from pipesched.schedules import ScheduleError, make_generated_schedule, make_schedule
from pipesched.schedules.builders import OwnName
from pipesched.schedules.ops import Compute, Message, Overlap, Payload, Phase, Send, Step, backward, forward
from pipesched.workflows.arguments import own_entry, read_schedule_argument, searched_entries
from tests.profiles.hand_profiles import layer, measurement, profile

COUNTS = {"num_ranks": 2, "num_microbatches": 3}


def plain(num_ranks, num_microbatches, reverse: bool = False):
    """All forwards, then all backwards.

    As GPipe, or the backwards in turn.
    """
    order = [*range(num_microbatches)][:: -1 if reverse else 1]
    for rank in range(num_ranks):
        yield [*(forward(rank, i) for i in range(num_microbatches)), *(backward(rank, i) for i in order)]


def looped(p, m, num_chunks=2, sizes: tuple[int, ...] = (1,), share: float = 0.5, depth: "int | None" = None):
    assert (sizes, share, depth) == ((1,), 0.5, None) or (sizes, share, depth) == ((2, 1), 0.25, 3)
    stages = [[rank + p * chunk for chunk in range(num_chunks)] for rank in range(p)]
    return [
        [*(forward(s, i) for s in held for i in range(m)), *(backward(s, i) for s in held[::-1] for i in range(m))]
        for held in stages
    ]


def test_what_it_yields_is_a_schedule_that_steps_at_its_end():
    schedule = read_schedule_argument(plain, ScheduleCounts(**COUNTS)).schedule
    assert schedule.ops == pipesched.build("gpipe", 2, 3).ops
    assert (schedule.name, schedule.origin) == (f"{__name__}:plain", None)
    assert own_entry(plain).text == "All forwards, then all backwards."


def test_parameters_are_those_of_its_signature():
    entry = own_entry(looped)
    assert [(parameter.name, parameter.takes) for parameter in entry.parameters] == [
        ("sizes", "integers"), ("share", "number"), ("depth", "integer"),
    ]  # fmt: skip
    assert (entry.traits.takes_chunks, entry.chunks) == (True, 2)
    asked = {"sizes": (2, 1), "share": 0.25, "depth": 3}
    schedule = read_schedule_argument(looped, ScheduleCounts(**COUNTS, num_chunks=3, parameters=asked)).schedule
    assert (schedule.num_stages, schedule.stages_on(1)) == (6, (1, 3, 5))
    assert schedule.ops[0][:4] == (forward(0, 0), forward(0, 1), forward(0, 2), forward(2, 0))
    last = read_schedule_argument(plain, ScheduleCounts(**COUNTS, parameters={"reverse": 1})).schedule.ops[0]
    assert last[3:] == (backward(0, 2), backward(0, 1), backward(0, 0), Step(0))
    with pytest.raises(ScheduleError, match=r":plain: got unknown parameter depth, expected reverse"):
        read_schedule_argument(plain, ScheduleCounts(**COUNTS, parameters={"depth": 1}))


@pytest.mark.parametrize("schedule", [looped, f"{__name__}:looped"])
def test_it_is_compared_with_others_and_takes_what_it_knows(schedule):
    costs = pipesched.DeviceCost(1.0, 2.0)
    counts = {"num_ranks": 4, "num_microbatches": 8, "num_chunks": 2, "parameters": {"accumulate": 4}}
    compared = pipesched.compare(["looped_bfs", schedule, "pipedream_2bw"], costs, **counts)
    first, second, _ = (summary.makespan_s for summary in compared.summaries)
    assert first == second == (8 + 3 / 2) * 3


def test_a_file_is_read_anew_when_it_has_changed(tmp_path):
    path = tmp_path / "changing.py"
    for count in (1, 2):
        path.write_text(
            f"from pipesched.schedules.ops import forward\nN = {count}\n"
            "def b(p, m): return [[forward(0, i) for i in range(N)]]\n"
        )
        os.utime(path, (count, count))  # Python itself tells files of one size apart by their seconds
        schedule = read_schedule_argument(f"{path}:b", ScheduleCounts(num_ranks=1, num_microbatches=2)).schedule
        assert len(schedule.ops[0]) == count + 1


def test_a_schedule_keeps_its_devices_and_goes_by_the_builders_name():
    def shared(num_ranks, num_microbatches):
        return make_schedule("x", 2, num_microbatches, [*plain(num_ranks, num_microbatches)], (0, 0))

    def generated(num_ranks, num_microbatches):
        rows = [*plain(num_ranks, num_microbatches)]
        return make_generated_schedule("x", 2, num_microbatches, [rows[0].__iter__, rows[1].__iter__])

    schedule = read_schedule_argument(shared, ScheduleCounts(**COUNTS)).schedule
    assert (schedule.rank_to_device, schedule.name.rpartition(".")[2]) == ((0, 0), "shared")
    assert read_schedule_argument(generated, ScheduleCounts(**COUNTS)).schedule.is_held


def test_whole_numbers_of_numpy_are_numbers():
    def numpys(num_ranks, num_microbatches):
        order = np.arange(num_microbatches)
        return [[*(forward(rank, i) for i in order), *(backward(rank, i) for i in order)] for rank in range(num_ranks)]

    assert pipesched.simulate(pipesched.build_own(numpys, **COUNTS), pipesched.DeviceCost(1.0, 2.0)).makespan_s == 12.0


def raises(p, m):
    return 1 // 0


BAD = {
    "got None, expected a Schedule, or a list of ops for each rank": lambda p, m: None,
    "got '0F0', expected a Schedule": lambda p, m: "0F0",
    "got TypeError: 'int' object is not iterable": lambda p, m: [1, 2],
    "got lists of 1 ranks, expected 2": lambda p, m: [[]],
    "got lists of more ranks, expected 2": lambda p, m: [[]] * 5,
    "rank 1, op 0: got '1F0', expected an op of whole numbers; try": lambda p, m: [[forward(0, 0)], ["1F0"]],
    "rank 0, op 0: got Compute('F', 0, 0, 0, 0, False), expected": lambda p, m: [[Compute("F", 0, 0)], []],
    "rank 0, op 0: got Compute(F, -1, 0, 0, 0, False), expected": lambda p, m: [[forward(-1, 0)], []],
    "got Compute(F, 0, 0.5, 0, 0, False), expected": lambda p, m: [[forward(0, 0.5)], []],
    "got Compute(F, 0, 0, 0, 0, True), expected": lambda p, m: [[Compute(Phase.FORWARD, 0, 0, is_late=True)], []],
    "rank 0, op 0: got Overlap(": lambda p, m: [[Overlap(forward(0, 0), None)], []],
    "rank 0, op 0: got Send(": lambda p, m: [[Send(Message(Payload.ACTIVATION, 0, 0), None)], []],
    "got 1000000 stages x 3000 micro-batches, expected a product of at most": lambda p, m: [[forward(999_999, 0)], []],
    "got a Schedule of 4 micro-batches, expected 3": lambda p, m: make_schedule("x", 2, 4, [[], []]),
    "got a Schedule whose num_stages or rank_to_device": lambda p, m: make_schedule("x", 2.5, m, [[], []]),
    "got a function with other parameters, expected num_ranks and num_microbatches first": lambda p: [],
    "got no depth, expected a value; give it in `parameters`": lambda p, m, depth: [],
    "got no num_chunks, expected a value; give `num_chunks`": lambda p, m, num_chunks: [],
    "got ZeroDivisionError in line": raises,
    "got SystemExit": lambda p, m: exit(),
}


@pytest.mark.parametrize(("words", "builder"), BAD.items(), ids=range(len(BAD)))
def test_nonsense_is_told_in_one_line_that_names_the_builder(words, builder):
    counts = {"num_ranks": 2, "num_microbatches": 3000} if "3000" in words else COUNTS
    with pytest.raises(ScheduleError) as caught:
        pipesched.simulate(pipesched.build_own(builder, **counts), pipesched.DeviceCost(1.0, 2.0))
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"schedule {__name__}:")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine.py:b", "schedule mine.py:b: got no file mine.py, expected package.module:builder or path.py:builder"),
        ("nosuchmodule:b", "schedule nosuchmodule:b: got ModuleNotFoundError: No module named 'nosuchmodule'"),
        (f"{__name__}:nosuch", f"got no function 'nosuch' in {__name__}, expected one of "),
        (f"{__name__}:plane", "did you mean plain? check its spelling"),
        (f"{__name__}:COUNTS", f"got no function 'COUNTS' in {__name__}"),
        ("a:b:c=3", "got 'a:b:c=3', expected package.module:builder or path.py:builder; try mine.py:builder"),
        (":", "got ':', expected package.module:builder"),
        ("os;x:y", "got 'os;x:y', expected package.module:builder"),
    ],
)
def test_a_name_of_nothing_is_refused_in_one_line(name, words):
    with pytest.raises(ScheduleError) as caught:
        pipesched.check(name, **COUNTS)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_lists_that_cannot_run_are_refused_by_the_checker():
    def dead(p, m):
        return [[backward(rank, i) for i in range(m)] + [forward(rank, i) for i in range(m)] for rank in range(p)]

    with pytest.raises(pipesched.ScheduleError, match=r"dead: .* wait"):
        pipesched.simulate(pipesched.build_own(dead, **COUNTS), pipesched.DeviceCost(1.0, 2.0))
    assert pipesched.check(dead, **COUNTS).judgement.findings


def test_training_runs_its_lists():
    model = "digits:width=8,blocks=4"
    own_losses, losses = (
        pipesched.train(model, schedule, num_steps=3, batch_size=8).losses
        for schedule in (pipesched.build_own(plain, 2, 2), pipesched.build("gpipe", 2, 2))
    )
    assert own_losses == losses


def test_a_search_sends_its_name_to_other_processes_and_not_its_code(tmp_path):
    path = tmp_path / "sent.py"
    imports = "from pipesched.schedules.ops import backward, forward"
    text = f"{imports}\ndef b(p, m): return [[f(0, i) for f in (forward, backward) for i in range(m)]]"
    path.write_text(text)
    (entry,) = searched_entries([f"{path}:b"], "")
    sent = pickle.dumps(entry.searched_name)
    path.write_text(f"{text}  # another")
    arrived = pickle.loads(sent)
    assert (arrived, type(arrived)) == (f"{path}:b", OwnName)
    with pytest.raises(ScheduleError, match=r"sent.py:b: got a source that has changed since the search began"):
        pipesched.build(arrived, 1, 3)
    path.write_text(text)
    assert pipesched.build(arrived, 1, 3) == pipesched.build(entry.searched_name, 1, 3)


def test_a_text_of_the_same_letters_finds_nothing():
    (entry,) = searched_entries([plain], "")
    assert entry.searched_name == f"{__name__}:plain"
    assert pipesched.build(entry.searched_name, 2, 3).ops == pipesched.build("gpipe", 2, 3).ops
    with pytest.raises(ScheduleError, match="a builder of your own"):
        pipesched.build(f"{__name__}:plain", 2, 3)


def test_functions_are_searched_here_whether_others_can_import_them_or_not():
    def hidden(p, m):
        return plain(p, m)

    sweep = pipesched.sweep([plain, hidden, "gpipe"], pipesched.DeviceCost(1.0, 2.0), num_ranks=2, num_microbatches=[3])
    assert [outcome.seconds for outcome in sweep.outcomes] == [12.0] * 3
    asked = {"schedules": [hidden, plain], "num_workers": 1}
    two_layers = profile(*[layer(measurement(1), measurement(2, 2.0, 4.0))] * 2)
    plans = pipesched.plan(two_layers, batch_size=4, num_devices=2, depths=2, recompute="no", **asked).ranking.ranked
    assert [outcome.seconds for outcome in plans] == [15.5, 15.5, 18.5, 18.5]  # of (M + 1) 3 s or 6 s, and a Step
    tuned = pipesched.tune(two_layers, batch_size=4, num_devices=2, **asked)
    own_times = [outcome.seconds for outcome in tuned.outcomes if outcome.setting.advance is None]
    assert own_times == [15.5, 15.5, 18.5, 18.5]
    with pytest.raises(pipesched.ArgumentError, match=r"got 2 with .*hidden, a function that no other process"):
        pipesched.tune(two_layers, batch_size=4, num_devices=2, **asked | {"num_workers": 2})
