"""Under torchrun every process brings its own run: they are refused where they differ."""

import pytest

from tests.workflows.measuring.test_running import torchrun

pytestmark = pytest.mark.distributed


PARTS = 'partition=("3,5", "5,3")[rank], lr=(0.1, 0.2)[rank]'
CALLS = (
    f'pipesched.run(pipesched.build("1f1b", 2, 2), "mlp:width=8,layers=8", {PARTS})',
    'pipesched.train("digits:width=8,blocks=4", pipesched.build("1f1b", 2, 2), num_steps=2, batch_size=8, seed=rank)',
    'len(pipesched.run(pipesched.build("1f1b", 2, 2), "mlp:width=8,layers=8", iterations=1, '
    'save=f"weights{rank}", timeout_s=50 + rank).losses)',
)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Return what each of two processes is told by each of `CALLS`, in which `rank` is the number of the process."""
    script = f"""
import json, os, pipesched
rank, all_words = int(os.environ["RANK"]), []
for call in {CALLS!r}:
    try:
        all_words.append(repr(eval(call)))
    except ValueError as error:
        all_words.append(type(error).__name__ + ": " + str(error))
with open(f"said{{rank}}", "w") as file:
    json.dump(all_words, file)
"""
    return list(zip(*torchrun(script, tmp_path_factory.mktemp("two")), strict=True))


@pytest.mark.parametrize(("call", "fields"), [(0, "bounds, lr"), (1, "seed")])
def test_processes_with_other_arguments_are_refused_in_all_of_them(said, call, fields):
    words = f"ExecutionError: {fields}: process 1 got something else than process 0; expected the same in every process"
    assert said[call] == (words, words)


def test_what_a_process_may_have_its_own_way_is_not_compared(said):
    assert said[2] == ("2", "2")
