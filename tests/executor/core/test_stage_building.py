"""What is found out when a model is put on stages."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipesched.executor import ExecutionError
from pipesched.profiles import ProfileError
from pipesched.profiles.models import Model
from pipesched.schedules.builders import build
from pipesched.schedules.transforms import recompute
from tests.executor import models
from tests.executor.pipelines import Local, assert_equal, whole_gradients
from tests.schedules.edits import without_steps


def made_of(*layers):
    names = tuple(str(index) for index in range(len(layers)))
    return Model("made up", layers, names, functional.mse_loss, lambda n, seed: (torch.ones(n, 4), torch.zeros(n, 4)))


def test_a_parameter_on_two_stages_is_refused_and_on_one_it_is_trained_as_in_the_whole_model():
    shared = nn.Linear(4, 4).double()
    model = made_of(lambda: shared, lambda: nn.Linear(4, 4), lambda: nn.Sequential(nn.Tanh(), shared))
    for schedule in (build("1f1b", 2, 2), build("chimera", 2, 4), build("interleaved", 1, 2, num_chunks=2)):
        with pytest.raises(
            ProfileError, match=r"layer 0 on stage 0 and layer 2 on stage 1 share 1\.weight through their"
        ):
            Local(schedule, model)
    gradients = [p.grad.clone() for p in Local(without_steps(build("1f1b", 1, 2)), model).run().parameters]
    shared.zero_grad()
    assert_equal(gradients, whole_gradients(model, 2))


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        (((0, 1), (1, 2)), "got 2 layers on 2 stages, expected all 4 of the model"),
        (((0, 1), (1, 5)), "got layers 1 to 5 (exclusive) on stage 1, expected layers 1 to a larger number up to 4"),
        (((0, 1), (2, 4)), "got layers 2 to 4 (exclusive) on stage 1, expected layers 1 to a larger number up to 4"),
        (((0, 10**9), (10**9, 10**10)), "got layers 0 to 1000000000 (exclusive) on stage 0"),
    ],
)
def test_a_cut_that_is_not_one_of_the_whole_model_is_refused(bounds, said):
    with pytest.raises(ExecutionError) as raised:
        Local(build("gpipe", 2, 2), models.plain(layers=4), bounds=bounds)
    assert str(raised.value).startswith(f"bounds: {said}")


def test_only_the_micro_batches_of_stages_with_an_r_keep_their_input_alone():
    run = Local(without_steps(recompute(build("gpipe", 2, 3), stages=[0])), models.dropping(layers=2))
    kept = []

    def listen(rank, index):
        if str(run.schedule.ops[rank][index]) == "1B0":
            kept.extend((len(run.stage(s)._inputs), len(run.stage(s)._saved)) for s in (0, 1))

    for rank in run.ranks:
        object.__setattr__(rank, "at", lambda index, op, rank=rank.rank: listen(rank, index))
    run.run()
    assert kept == [(2, 1), (0, 3)]  # by then rank 0 has run 0R0, which waits for nobody
    assert_equal((p.grad for p in run.parameters), whole_gradients(run.model, 3))


def test_a_stage_with_nothing_to_train_runs():
    model = made_of(lambda: nn.Linear(4, 4), nn.Tanh, lambda: nn.Linear(4, 4))
    run = Local(build("gpipe", 3, 3), model, lr=0.05)
    start = [parameter.detach().clone() for parameter in run.parameters]
    gradients = whole_gradients(model, 3)
    assert_equal(run.run().parameters, [w - 0.05 * g for w, g in zip(start, gradients, strict=True)])
