"""Processes whose factories make different models are refused in one line, in every process."""

import pytest

from tests.executor.job_sequence_ranks import run_together
from tests.executor.test_several_tensors import training

CASES = {
    "deeper": ("1f1b", "layers"),
    "filled": ("chimera", "0.weight of stage 0"),
    "tied": ("1f1b", "weight of layer 0"),
}


@pytest.mark.distributed
@pytest.mark.parametrize("name", CASES)
def test_a_model_that_depends_on_the_rank_is_refused(name, tmp_path):
    schedule, what = CASES[name]
    tied = (0, 1) if name == "tied" else ()
    job = training(schedule, model=f"tests.executor.rank_models:{name}", tied_stages=tied)
    said = run_together({name: job}, 2, tmp_path)
    assert said[name].startswith(
        f"model tests.executor.rank_models:{name}: rank 1 has built other {what} than rank 0, expected the same in "
        "every process; let the factory depend on no rank"
    )
