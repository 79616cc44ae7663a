"""What is read off the run of a setting."""

import pytest

from pipesched.schedules import Span, Timeline
from pipesched.schedules.ops import Step
from pipesched.workflows.tuning.setting_runs import _iteration_s


def steps(*ends_by_rank):
    """A run in which the ranks step at these moments."""
    spans = [Span(rank, Step(0), end - 0.1, end - 0.1, end) for rank, ends in enumerate(ends_by_rank) for end in ends]
    return Timeline("by hand", "measured", tuple(spans), (0,) * len(ends_by_rank))


def test_an_iteration_is_the_median_from_step_to_step_after_those_skipped():
    assert _iteration_s(steps([5.0, 6.0, 8.0, 9.5, 11.0]), 1, skipped=1) == pytest.approx(1.5)


def test_of_several_pipelines_all_count_until_the_first_is_done():
    """The second goes on alone, faster: what it does then says nothing of two."""
    together, alone = [2.0, 4.0, 6.0, 8.0], [3.0, 5.0, 7.5, 8.1, 8.2]
    assert _iteration_s(steps(together, alone), 2, skipped=0) == pytest.approx(2.0)
    assert _iteration_s(steps(together, alone), 2, skipped=1) == pytest.approx(2.0)


def test_every_pipeline_is_read_at_its_first_rank():
    ranks = [1.0, 2.0, 3.0], [9.0, 9.1, 9.2], [1.5, 2.5, 3.5], [9.0, 9.1, 9.2]
    assert _iteration_s(steps(*ranks), 2, skipped=0) == pytest.approx(1.0)
