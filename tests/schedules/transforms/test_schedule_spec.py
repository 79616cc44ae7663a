"""A schedule specification makes the copies that it says, where it says."""

from dataclasses import replace

import pytest

from pipesched.schedules import ScheduleTraits, make_schedule, repeat
from pipesched.schedules.builders import CATALOGUE, build, build_generated
from pipesched.schedules.formats import from_json, to_json, write_csv
from pipesched.schedules.formats.torch_csv import read_csv_text
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import backward, forward
from pipesched.schedules.transforms import ScheduleSpec, compute_only, delay_reduces, place_copies, recompute, replicate
from tests.schedules.builder_rules import kinds, refused

LAYOUT = {"width": 2, "placement": "data", "recompute": (0,)}


def test_a_named_schedule_is_repeated_copied_placed_and_recomputed():
    run = ScheduleSpec(name="gpipe", num_ranks=2, num_microbatches=4, **LAYOUT).run(3)
    assert (run.name, run.microbatches_per_step) == ("gpipex2", 8)
    expected = recompute(place_copies(replicate(repeat(build("gpipe", 2, 4), 3), 2), "data", 2), [0])
    assert run.lists(3).held() == expected.held()
    assert run.lists(3).rank_to_device == (0, 2, 1, 3)


@pytest.mark.parametrize("has_steps", [True, False])
def test_so_are_lists(has_steps):
    """A file for PyTorch has no Steps."""
    named = ScheduleSpec(name="gpipe", num_ranks=2, num_microbatches=4, **LAYOUT).run(3)
    read = read_csv_text(write_csv(build("gpipe", 2, 4)), "lists", steps=has_steps)
    lists = replace(read, name="gpipe", origin="gpipe")
    listed = ScheduleSpec(lists=to_json(lists), **LAYOUT).run(3)
    assert listed.microbatches_per_step == 8
    assert listed.lists(3).held() == named.lists(3).held()


def test_a_step_without_a_flush_takes_its_micro_batches_of_every_copy():
    run = ScheduleSpec(name="pipedream_2bw", num_ranks=2, num_microbatches=3, width=4).run(5)
    assert run.microbatches_per_step == 12
    assert run.lists(5).held() == replicate(build_generated("pipedream_2bw", 2, 15, accumulate=3), 4).held()


@pytest.mark.parametrize(
    ("schedule_spec", "words"),
    [
        (ScheduleSpec(name="avgpipe", num_ranks=2, num_microbatches=4, width=2), "avgpipe: got width 2, expected 1"),
        (ScheduleSpec(lists=to_json(build("avgpipe", 2, 4)), width=2), "avgpipe: got width 2, expected 1"),
        (ScheduleSpec(name="gpipe", num_ranks=2, width=0), "width is 0"),
        (
            ScheduleSpec(name="gpipe", parameters={"num_ranks": 3}),
            "gpipe: got unknown parameter num_ranks, it takes none",
        ),
        (
            ScheduleSpec(name="avgpipe", parameters={"name": 1}),
            "avgpipe: got unknown parameter name, expected pipelines",
        ),
    ],
)
def test_copies_that_cannot_be_are_refused_in_one_line(schedule_spec, words):
    with refused(words):
        schedule_spec.run(1).lists(1)


@pytest.mark.parametrize("name", kinds())
def test_a_schedule_knows_its_entry_whatever_is_done_to_it(name):
    entry = CATALOGUE[name]
    made = [build(name, 4, 8), build_generated(name, 4, 8)]
    made += [recompute(schedule) for schedule in made] + [delay_reduces(schedule) for schedule in made]
    made += [repeat(made[0], 2), lower(made[0]), made[1].held(), compute_only(lower(made[0]))]
    made += [] if entry.traits.averages else [replicate(schedule, 2) for schedule in made]
    made += [replace(schedule, name="mine") for schedule in made]
    made += [from_json(to_json(schedule), "mine.json") for schedule in made if schedule.is_held]
    assert {schedule.origin for schedule in made} == {name}
    assert all(schedule.traits == entry.traits for schedule in made)


def test_lists_without_an_origin_have_no_traits_that_anybody_knows():
    hand = make_schedule("spectrain", 1, 1, [[forward(0, 0), backward(0, 0)]])
    assert (hand.origin, hand.traits) == (None, ScheduleTraits())
