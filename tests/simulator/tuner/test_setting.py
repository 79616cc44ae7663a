import pytest

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import build
from pipesched.schedules.builders.avgpipe import one_pipeline
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Average
from pipesched.schedules.transforms import recompute
from pipesched.simulator.tuner import Space, tuned
from tests.simulator.tuner.problems import problem


def test_a_setting_says_what_it_is():
    assert str(tuned("avgpipe", 3, 8, 2, 1)) == "avgpipe M=8 N=2 advance=1"
    for when, words in (("early", "recompute"), ("late", "late recompute")):
        setting = tuned("interleaved", 3, 4, num_chunks=2, recompute_when=when)
        assert str(setting) == f"interleaved M=4 N=1 chunks=2 {words}"
    assert str(tuned("avgpipe", 3, 8, 1, 0)) == "1f1b M=8 N=1"
    assert str(tuned("avgpipe", 3, 8, 1, 3)) == "1f1b_afp M=8 N=1 advance=3"


@pytest.mark.parametrize("setting", Space(3, (1, 4, 6), (1, 2, 3), (0, 1, 9), ("avgpipe", "zb_h1")).settings(), ids=str)
def test_a_setting_has_the_name_and_the_parameters_that_its_lists_have_in_the_catalogue(setting):
    simplest = setting.simplest
    assert simplest.build().ops == setting.build().ops
    assert (simplest.schedule == "avgpipe") == (setting.num_pipelines > 1)
    assert (simplest.schedule == "1f1b") == (setting.build().ops == build("1f1b", 3, setting.num_microbatches).ops)


def test_several_pipelines_are_another_training():
    assert tuned("avgpipe", 3, 4, 2, 0).training == "elastic averaging"
    assert any(isinstance(op, Average) for row in tuned("avgpipe", 2, 4, 2, 0).build().ops for op in row)


def test_a_setting_builds_all_its_pipelines_or_one():
    asked, setting = problem(num_devices=2), tuned("avgpipe", 2, 4, 3, 2)
    assert setting.build() == build("avgpipe", 2, 12, pipelines=3, advance=2)
    assert asked.lists(setting) == lower(one_pipeline(2, 4, pipelines=2, advance=2))


def test_other_schedules_have_one_pipeline():
    setting = tuned("interleaved", 2, 4, num_chunks=3, recompute_when="early")
    assert setting.build() == recompute(build("interleaved", 2, 4, num_chunks=3))


def test_what_a_schedule_cannot_do_is_refused():
    with pytest.raises(ScheduleError, match="chimera"):
        tuned("chimera", 3, 3).build()


def test_only_1f1b_as_it_was_is_plain():
    assert tuned("avgpipe", 3, 4, 1, 0).is_plain
    others = [tuned("avgpipe", 3, 4, 2, 0), tuned("avgpipe", 3, 4, 1, 1)]
    others += [tuned("avgpipe", 3, 4, 1, 0, recompute_when=when) for when in ("early", "late")]
    assert not any(setting.is_plain for setting in [*others, tuned("zb_h1", 3, 4)])


def test_a_space_has_every_setting_once_and_none_that_has_the_lists_of_another():
    all_settings = Space(3, (1, 4), (1, 2), (0, 1, 3, 9)).settings()
    # at M = 1 any advance is one of 0, at M = 4 one of 3 or 9 is one of 2
    assert len(all_settings) == len(set(all_settings)) == 2 * (1 + 3)
    lists = [setting.build().ops for setting in all_settings]
    assert len(set(lists)) == len(lists)


@pytest.mark.parametrize("m", range(1, 7))
def test_no_two_advances_of_a_space_have_the_same_lists_and_none_is_missing(m):
    everything = {tuned("avgpipe", 3, m, 1, advance).build().ops for advance in range(m + 3)}
    lists = [setting.build().ops for setting in Space(3, (m,), (1,), range(m + 3)).settings()]
    assert len(lists) == len(everything)
    assert set(lists) == everything


def test_1f1b_and_1f1b_afp_by_name_are_one_pipeline_of_avgpipe():
    assert Space(3, (4,), (1, 2), (0, 2), ("1f1b",)).settings() == (tuned("avgpipe", 3, 4, 1, 0),)
    both = Space(3, (4,), (1, 2), (0, 2), ("1f1b_afp", "1f1b")).settings()
    assert both == (tuned("avgpipe", 3, 4, 1, 0), tuned("avgpipe", 3, 4, 1, 2))


def test_chunks_are_for_those_that_take_them_and_recompute_for_all():
    settings = Space(3, (4,), schedules=("zb_h1", "interleaved"), chunks=(2, 3), recomputes=(None, "early")).settings()
    assert [str(setting) for setting in settings] == [
        "1f1b M=4 N=1",
        "zb_h1 M=4 N=1",
        "zb_h1 M=4 N=1 recompute",
        "interleaved M=4 N=1 chunks=2",
        "interleaved M=4 N=1 chunks=3",
        "interleaved M=4 N=1 chunks=2 recompute",
        "interleaved M=4 N=1 chunks=3 recompute",
    ]
