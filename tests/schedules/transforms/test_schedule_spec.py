"""A recipe makes the copies that it says, where it says."""

import pytest

from pipesched.schedules import ScheduleError, repeat
from pipesched.schedules.builders import CATALOGUE, build, build_lazily, origin_of
from pipesched.schedules.formats import to_json
from pipesched.schedules.transforms import ScheduleSpec, place, recompute, replicate
from tests.schedules.builder_rules import assert_one_line

LAYOUT = {"width": 2, "placement": "data", "recompute": (0,)}


def test_a_named_schedule_is_repeated_copied_placed_and_recomputed():
    run = ScheduleSpec(name="gpipe", num_ranks=2, num_microbatches=4, **LAYOUT).run(3)
    assert (run.name, run.microbatches_per_step) == ("gpipex2", 8)
    expected = recompute(place(replicate(repeat(build("gpipe", 2, 4), 3), 2), "data", 2), [0])
    assert run.lists(3).schedule() == expected.schedule()
    assert run.lists(3).rank_to_device == (0, 2, 1, 3)


def test_so_are_lists():
    named = ScheduleSpec(name="gpipe", num_ranks=2, num_microbatches=4, **LAYOUT).run(3)
    listed = ScheduleSpec(lists=to_json(build("gpipe", 2, 4)), **LAYOUT).run(3)
    assert listed.microbatches_per_step == 8
    assert listed.lists(3).schedule() == named.lists(3).schedule()


def test_a_step_without_a_flush_takes_its_micro_batches_of_every_copy():
    run = ScheduleSpec(name="pipedream_2bw", num_ranks=2, num_microbatches=3, width=4).run(5)
    assert run.microbatches_per_step == 12
    assert run.lists(5).schedule() == replicate(build_lazily("pipedream_2bw", 2, 15, accumulate=3), 4).schedule()


@pytest.mark.parametrize(
    ("recipe", "words"),
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
def test_copies_that_cannot_be_are_refused_in_one_line(recipe, words):
    with pytest.raises(ScheduleError) as error:
        recipe.run(1).lists(1)
    assert_one_line(str(error.value), words)


def test_a_name_leads_back_to_its_entry_whatever_was_done_to_the_schedule():
    for name, entry in CATALOGUE.items():
        assert origin_of(name) is origin_of(f"{name}+R") is origin_of(f"{name}x12") is origin_of(f"{name}x2+R") is entry
    assert origin_of("mine") is origin_of("1f1bx") is None
