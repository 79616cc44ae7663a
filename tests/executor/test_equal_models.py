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
def test_a_model_that_depends_on_the_rank_is_refused(tmp_path):
    models = {name: f"tests.executor.rank_models:{name}" for name in CASES}
    said = run_together(
        {
            name: training(schedule, model=models[name], tied_stages=(0, 1) if name == "tied" else ())
            for name, (schedule, _) in CASES.items()
        }, 2, tmp_path,
    )  # fmt: skip
    for name, (_, what) in CASES.items():
        assert said[name].startswith(
            f"model {models[name]}: rank 1 has built other {what} than rank 0, expected the same in every process; "
            "make the factory independent of rank"
        )
