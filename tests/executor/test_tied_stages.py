"""Stages that share parameters: PyTorch's autograd on the module with real sharing, in float64, is the oracle."""

import copy
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import pipesched
from pipesched.executor import ExecutionError
from pipesched.executor.core import whole_state
from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import uniform
from pipesched.profiles.models import build_layers, make_optimizer, resolve_model, tied_stages, trace_model
from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Reduce, Summed
from pipesched.schedules.transforms import ScheduleSpec, replicate, with_step_barrier, with_tied_sum
from tests.executor.pipelines import Local, even_bounds, whole_run
from tests.executor.tied_models import CLASSES, MODELS, WIDTH, Whole, batch, loss
from tests.properties import thinned

LISTS = {
    "gpipe": lambda: build("gpipe", 4, 8),
    "1f1b": lambda: build("1f1b", 4, 8),
    "zb_h1": lambda: build("zb_h1", 4, 8),
    "interleaved": lambda: build("interleaved", 2, 8, num_chunks=2),
    "zbv": lambda: build("zbv", 2, 8),
    "chimera": lambda: build("chimera", 4, 8),
    "data_parallel": lambda: build("data_parallel", 4, 8),
    "copies": lambda: replicate(build("1f1b", 4, 4), 2),
    "copies of zbv": lambda: replicate(build("zbv", 2, 4), 2),
}


def summed(model, lists):
    """Return the lists with the sums that the cut of the model needs, and the cut."""
    bounds = even_bounds(len(model.layers), lists.num_stages)
    stages = tied_stages(model, bounds)
    return with_tied_sum(lists, stages) if stages else lists, bounds


def whole(model, num_samples, optimizer, lr, max_norm, num_steps):
    """Train the module with shared parameters on one batch; return its losses, and its parameters by name."""
    module = copy.deepcopy(build_layers(model, 0, len(model.layers), seed=0, dtype=torch.float64))
    inputs, targets = model.batch(num_samples, 0)
    stepping, losses = make_optimizer(optimizer, list(module.parameters()), lr), []
    for _ in range(num_steps):
        stepping.zero_grad()
        mean = model.loss(module(inputs), targets)
        mean.backward()
        if max_norm is not None:
            assert nn.utils.clip_grad_norm_(module.parameters(), max_norm) > max_norm, "it clips"
        stepping.step()
        losses.append(mean.item())
    return losses, dict(module.named_parameters(remove_duplicate=False))


def parameters_of(run):
    """Return all parameters of a run as (name in the model, parameter), each replica for itself."""
    for rank in run.ranks:
        for number, stage in rank.stages.items():
            for name, parameter in stage.module.named_parameters(remove_duplicate=False):
                layer, _, rest = name.partition(".")
                yield f"{int(layer) + run.bounds[number][0]}.{rest}", parameter


@pytest.mark.parametrize(
    ("name", "made_and_norm"), thinned(LISTS, [("two_places", 0.05), ("three_places", None), ("three_places", 0.05)])
)
def test_tied_stages_train_as_the_module_with_shared_parameters(name, made_and_norm):
    """By SGD: Adam divides a wrong factor on all gradients away."""
    made, max_norm = made_and_norm
    model, lists = resolve_model(MODELS[made]), LISTS[name]()
    lists, bounds = summed(model, lists if max_norm is None else with_step_barrier(lists))
    run = Local(lists, model, bounds=bounds, optimizer="sgd", clip_grad_norm=max_norm)
    losses = []
    for _ in range(3):
        run.run()
        by_microbatch = dict(
            pair for rank in run.ranks for stage in rank.stages.values() for pair in stage.losses().items()
        )
        losses.append(sum(by_microbatch.values()) / len(by_microbatch))
    expected_losses, expected = whole(model, 16, "sgd", 0.05, max_norm, 3)
    assert losses == pytest.approx(expected_losses, rel=1e-12)
    trained = list(parameters_of(run))
    assert {name for name, _ in trained} == expected.keys()
    for name, parameter in trained:
        torch.testing.assert_close(parameter, expected[name], rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def traced():
    return trace_model("whole", Whole, loss, batch)


@pytest.mark.parametrize(("name", "max_norm"), thinned(["1f1b", "zb_h1", "interleaved", "zbv", "copies"], [None, 0.05]))
def test_a_traced_module_with_shared_parameters_trains_as_it_does_in_one_piece(traced, name, max_norm):
    model, lists = traced, LISTS[name]()
    lists, bounds = summed(model, lists if max_norm is None else with_step_barrier(lists))
    run = Local(lists, model, bounds=bounds, optimizer="adam", clip_grad_norm=max_norm)
    stages = {number: run.stage(number).module for number in range(lists.num_stages)}
    module = Whole().double()
    module.load_state_dict(whole_state(model, bounds, stages))
    optimizer, (inputs, targets) = torch.optim.Adam(module.parameters(), lr=0.05), batch(16, 0)
    for _ in range(3):
        run.run()
        optimizer.zero_grad()
        for x, y in zip(inputs.chunk(8), targets.chunk(8), strict=True):
            (loss(module(x), y) / 8).backward()
        if max_norm is not None:
            assert nn.utils.clip_grad_norm_(module.parameters(), max_norm) > max_norm, "it clips"
        optimizer.step()
    trained = whole_state(model, bounds, stages)
    assert trained.keys() == module.state_dict().keys()
    for key, parameter in module.named_parameters(remove_duplicate=False):
        torch.testing.assert_close(trained[key], parameter, rtol=0, atol=1e-11)


def test_copies_of_a_tied_parameter_stay_equal_to_the_last_bit():
    model = resolve_model(MODELS["three_places"])
    lists, bounds = summed(model, replicate(build("1f1b", 4, 6), 3))
    run = Local(lists, model, bounds=bounds, optimizer="adam").run(times=3)
    names = {name for name, _ in parameters_of(run)}
    for tie in model.ties:
        places = {f"{layer}.{name}" for layer, name in tie}
        assert places <= names
        first, *others = (parameter for name, parameter in parameters_of(run) if name in places)
        assert len(others) == 3 * len(places) - 1
        assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("partition", ["1,1,2,4", "3,5", "8"])
def test_a_training_resumes_on_another_cut(partition, tmp_path):
    """The momentum of a copy stays the momentum of its parameter, also if stages with copies become one or several."""
    asked = {"batch_size": 16, "optimizer": "adam", "lr": 0.05, "dtype": "float64"}

    def spec(num_ranks):
        return ScheduleSpec(name="1f1b", num_ranks=num_ranks, num_microbatches=4)

    _, expected = whole(resolve_model(MODELS["three_places"]), 16, "adam", 0.05, None, 6)
    for index, cut in enumerate(("2,2,4", partition, "2,2,4")):
        resumed = {"resume": tmp_path / str(index - 1)} if index else {}
        pipesched.train(
            MODELS["three_places"], spec(cut.count(",") + 1), partition=cut, num_steps=2 * index + 2,
            checkpoint=tmp_path / str(index), export=tmp_path / "whole.safetensors", **asked, **resumed,
        )  # fmt: skip
    for name, tensor in load_file(tmp_path / "whole.safetensors").items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-12)


def test_a_stage_with_all_places_needs_no_sum():
    model = resolve_model(MODELS["two_places"])
    lists, bounds = summed(model, build("data_parallel", 2, 4))
    assert bounds == ((0, 8),)
    assert not lists.summed_stages(Summed.TIED)


def test_tied_stages_without_a_sum_are_refused():
    model = resolve_model(MODELS["three_places"])
    message = (
        r"got stages 0, 1, 3 that share parameters \(first weight of layer 0\) with schedule 1f1b, expected steps that "
        "wait for the sum of their gradients; try pipesched.schedules.transforms.with_tied_sum, or cut"
    )
    for lists in (build("1f1b", 4, 4), with_tied_sum(build("1f1b", 4, 4))):
        with pytest.raises(ExecutionError, match=message):
            Local(lists, model, bounds=even_bounds(8, 4))


def test_a_sum_that_no_stages_need_is_refused():
    with pytest.raises(ExecutionError, match="got a sum of tied stages without shared parameters"):
        Local(with_tied_sum(build("1f1b", 2, 2))).run()


@pytest.mark.distributed
def test_runs_sum_the_gradients_of_tied_stages():
    lists, asked = build("zbv", 2, 4), {"dtype": "float64", "microbatch_size": 2, "iterations": 1, "warmup": 0}
    run = pipesched.run(lists, MODELS["three_places"], optimizer="sgd", lr=0.5, **asked)
    assert run.losses == pytest.approx(whole_run(resolve_model(MODELS["three_places"]), 4)[0], rel=1e-12)
    assert run.schedule.summed_stages(Summed.TIED)
    assert sum(isinstance(span.op, Reduce) for span in run.timeline.spans) == len(run.schedule.summands[Summed.TIED])


@pytest.mark.distributed
@pytest.mark.parametrize(("name", "width", "is_distributed"), [("1f1b", 1, True), ("zbv", 2, False)])
def test_training_steps_as_the_module_with_shared_parameters(name, width, is_distributed, tmp_path):
    spec = ScheduleSpec(name=name, num_ranks=2, num_microbatches=4, width=width)
    trained = pipesched.train(
        MODELS["three_places"], spec, batch_size=16, num_steps=3, optimizer="adam", lr=0.05, dtype="float64",
        clip_grad_norm=0.05, is_distributed=is_distributed, export=tmp_path / "whole.safetensors",
    )  # fmt: skip
    model = resolve_model(MODELS["three_places"])
    losses, expected = whole(model, 16, "adam", 0.05, 0.05, 3)
    assert trained.losses == pytest.approx(losses, rel=1e-11)
    exported = load_file(tmp_path / "whole.safetensors")
    assert exported.keys() == expected.keys()
    for key, tensor in exported.items():
        torch.testing.assert_close(tensor, expected[key], rtol=0, atol=1e-12)


@pytest.mark.distributed
def test_a_verification_predicts_the_sum_that_the_run_has():
    """The profile counts a shared weight in each of its layers; prediction and run have the same ops."""
    model = MODELS["three_places"]
    verified = pipesched.verify(
        model, [pipesched.build("1f1b", 2, 4)], microbatch_size=2, iterations=1, dtype="float64", optimizer="adam",
        partition="uniform",
    )  # fmt: skip
    profile, table = verified.profile, CLASSES * WIDTH * 8
    assert [(tie.layers, tie.num_bytes) for tie in profile.ties] == [((0, 3, 7), table), ((3, 6), WIDTH * 8)]
    assert [profile.layers[at].weight_bytes for at in (0, 3, 7)] == [table, table + WIDTH * 8, table]
    assert [profile.layers[at].optimizer_bytes >= 2 * table for at in (0, 3, 7)] == [True] * 3
    (schedule,) = verified.schedules
    assert schedule.agrees
    ops = [sorted((span.rank, str(span.op)) for span in line.spans) for line in (schedule.predicted, schedule.measured)]
    assert ops[0] == ops[1]
    assert (0, "0REDUCE_TIED") in ops[0]


@pytest.mark.parametrize("name", ["pipedream", "avgpipe"])
def test_runs_and_trainings_refuse_schedules_without_a_flush(name):
    message = "layer 0 shares weight .*got tied stages 0, 1, .*; try 1f1b, or cut .*, or untie the weights$"
    model, lists = MODELS["two_places"], pipesched.build(name, 2, 4)
    spec = ScheduleSpec(name=name, num_ranks=2, num_microbatches=4)
    for call in (
        lambda: pipesched.run(lists, model),
        lambda: pipesched.train(model, spec, batch_size=8, num_steps=2),
        lambda: pipesched.verify(model, [lists], partition="uniform"),
    ):
        with pytest.raises(ScheduleError, match=message):
            call()


@pytest.mark.distributed
def test_an_emulated_run_waits_for_the_sum_that_is_predicted():
    lists = pipesched.build("zbv", 2, 2)
    costs = replace(uniform(lists.num_stages, 0.002, 0.002, 0.002, 0.002), tied_bytes=10**6)
    setup = pipesched.Setup(costs, flat(2, Link(bandwidth_bytes_per_s=2e7)))
    predicted, run = pipesched.simulate(lists, setup), pipesched.run(lists, setup, iterations=1)
    sums = [
        [span.op for span in line.spans if isinstance(span.op, Reduce)] for line in (predicted.timeline, run.timeline)
    ]
    assert sorted(map(str, sums[0])) == sorted(map(str, sums[1]))
    assert len(sums[0]) == 2
    assert run.schedule.summands == predicted.schedule.summands
    assert run.makespan_s >= 0.99 * predicted.makespan_s
