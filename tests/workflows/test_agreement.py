"""Under torchrun every process brings its own run: they are refused where they differ."""

import pytest

from tests.workflows.measuring.test_running import torchrun

pytestmark = pytest.mark.distributed


def said(call, tmp_path):
    """Return what each of two processes is told by `call`, in which `rank` is the number of the process."""
    script = f"""
import json, os, pipesched
rank = int(os.environ["RANK"])
try:
    words = repr({call})
except ValueError as error:
    words = type(error).__name__ + ": " + str(error)
with open(f"said{{rank}}", "w") as file:
    json.dump(words, file)
"""
    return torchrun(script, tmp_path)


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        (
            'pipesched.run("1f1b", "mlp:width=8,layers=8", num_ranks=2, num_microbatches=2, '
            'partition=("3,5", "5,3")[rank], lr=(0.1, 0.2)[rank])',
            "bounds, lr",
        ),
        (
            'pipesched.train("digits:width=8,blocks=4", "1f1b", num_ranks=2, num_steps=2, batch_size=8, seed=rank)',
            "seed",
        ),
    ],
)
def test_processes_with_other_arguments_are_refused_in_all_of_them(call, fields, tmp_path):
    words = f"ExecutionError: {fields}: process 1 got something else than process 0; expected the same in every process"
    assert said(call, tmp_path) == [words, words]


def test_what_a_process_may_have_its_own_way_is_not_compared(tmp_path):
    call = (
        'len(pipesched.run("1f1b", "mlp:width=8,layers=8", num_ranks=2, num_microbatches=2, iterations=1, '
        'save=f"weights{rank}", timeout_s=50 + rank).losses)'
    )
    assert said(call, tmp_path) == ["2", "2"]
