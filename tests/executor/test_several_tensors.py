"""Chains whose stages pass several tensors on, against the model in one piece, in float64."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from pipesched.executor import ExecutionError, RankFailed
from pipesched.executor.core import check_finite
from pipesched.executor.launch import Measure, RunSpec, Train, job_to_json
from pipesched.executor.runs import train_locally, training_of
from pipesched.executor.runs.measuring_job import whole_model_losses
from pipesched.executor.transport import LocalTransport
from pipesched.profiles.costs import Compression
from pipesched.profiles.measuring import ProfilerSettings, profile_model
from pipesched.profiles.models import resolve_model
from pipesched.schedules.builders import build
from pipesched.schedules.formats import to_json
from pipesched.schedules.ops import Message, Payload
from pipesched.schedules.transforms import ScheduleSpec, recompute
from tests.executor import tuple_models
from tests.executor.job_sequence_ranks import run_module, run_together
from tests.executor.pipelines import SYNCHRONOUS, Local, any_schedule, assert_equal, even_bounds, plain_loop, whole_run
from tests.properties import thinned
from tests.schedules.edits import without_steps


def filled(parameter):
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def compare(schedule, model):
    run = Local(without_steps(schedule), model).run()
    losses, expected = whole_run(model, schedule.num_microbatches)
    expected = [torch.zeros_like(p) if grad is None else grad for p, grad in zip(run.parameters, expected, strict=True)]
    assert_equal(map(filled, run.parameters), expected)
    for rank in run.ranks:  # all replicas of a stage
        for index, stage in rank.stages.items():
            own = zip(stage.module.parameters(), run.stage(index).module.parameters(), strict=True)
            assert all(torch.equal(filled(copy), filled(first)) for copy, first in own)
    loss_of = {k: v for rank in run.ranks for stage in rank.stages.values() for k, v in stage.losses().items()}
    assert [loss_of[number] for number in range(schedule.num_microbatches)] == pytest.approx(losses, rel=1e-12)


X = torch.ones(4, 4)
MODELS = {
    model.__name__: model for model in (tuple_models.mixed, tuple_models.twins, tuple_models.fed, tuple_models.numbered)
}


@pytest.mark.parametrize(("name", "made"), thinned(SYNCHRONOUS, MODELS))
def test_gradients_are_those_of_the_whole_model(name, made):
    """Each schedule runs a model on two ranks, and another one on four ranks with recomputation."""
    is_plain = (SYNCHRONOUS.index(name) + [*MODELS].index(made)) % 4 == 0
    lists = any_schedule(name, 2, seed=2) if is_plain else recompute(any_schedule(name, 4, seed=4))
    compare(lists, MODELS[made](layers=max(4, lists.num_stages)))


def test_compressed_tensors_of_a_message_lose_what_each_loses_alone():
    arrived = []

    class Listening(LocalTransport):
        def send(self, op, value):
            super().send(op, value)
            arrived.append((value, self._room.mail[next(reversed(self._room.mail))][1].value))

    schedule = build("gpipe", 2, 1)
    Local(schedule, tuple_models.mixed(layers=4), transport=lambda *given: Listening(*given, "half")).run()
    for sent, received in arrived:
        for tensor, copy in zip(sent, received, strict=True):
            if tensor is None or not tensor.is_floating_point():
                assert tensor is copy
            else:
                scale = 2.0 ** (15 - torch.frexp(tensor.abs().max()).exponent) if tensor.any() else 1.0
                assert torch.equal(copy, (tensor * scale).half().double() / scale)
                assert copy.requires_grad == tensor.requires_grad
    assert len(arrived) == 2


def test_not_a_number_is_found_in_any_tensor_and_its_place_is_named():
    class Spoiling(nn.Module):
        def forward(self, x):
            return x, x.long(), x / 0

    model = tuple_models.of("spoiling", [Spoiling, tuple_models.Sum])
    run = Local(build("gpipe", 2, 2), model)
    run.ranks = [replace(rank, probes=[check_finite]) for rank in run.ranks]
    with pytest.raises(RankFailed) as raised:
        run.run()
    assert str(raised.value).startswith(
        "rank 0 failed at 0F0 (micro-batch 0): got the first infinity of this run in tensor 2 of the output of stage 0"
    )


STEPS, BATCH = 3, 8


def training(name, **given):
    lists = {"num_ranks": 2, "recompute": None, "tied_stages": ()}
    schedule = ScheduleSpec(
        name=name, num_microbatches=4, **{key: given.pop(key, usual) for key, usual in lists.items()}
    )
    bounds = even_bounds(4, schedule.run(STEPS).lists(STEPS).num_stages)
    return RunSpec(
        job=Train(schedule_spec=schedule, num_steps=STEPS, batch_size=BATCH), bounds=bounds, dtype="float64",
        optimizer="sgd", lr=0.05, seed=3, **given,
    )  # fmt: skip


def plainly(model):
    return plain_loop(model, STEPS, BATCH, lambda parameters: torch.optim.SGD(parameters, 0.05))


RUNS = {
    "1f1b": {"model": "mixed:layers=4", "recompute": "all"},
    "zb_h1": {"model": "mixed:layers=4"},
    "zbv": {"model": "twins:layers=4"},
    "gpipe": {"model": "fed:layers=4"},
    "interleaved": {"model": "numbered:layers=4"},
}


@pytest.mark.distributed
def test_processes_that_exchange_several_tensors_train_as_the_whole_model(tmp_path):
    jobs = {
        name: training(name, **given | {"model": f"tests.executor.tuple_models:{given['model']}"})
        for name, given in RUNS.items()
    }
    jobs["compressed"] = training("1f1b", model="tests.executor.tuple_models:mixed:layers=4", compression="half")
    mixture = "tests.executor.tuple_models:mixture"
    assert resolve_model(mixture).layer_names == ("blocks.0.experts.0", "blocks.1.experts.0", "head"), "cuts by name"
    jobs["mixture"] = replace(training("1f1b", model=mixture), bounds=((0, 1), (1, 3)))
    losses = run_together(jobs, 2, tmp_path)
    for name, given in RUNS.items():
        made, layers = given["model"].split(":")[0], 4
        assert losses[name] == pytest.approx(plainly(getattr(tuple_models, made)(layers))[0], rel=1e-10), name
    assert losses["mixture"] == pytest.approx(plainly(tuple_models.mixture())[0], rel=1e-10)
    local = train_locally(training_of(jobs["compressed"]))
    assert losses["compressed"] == pytest.approx([scores.loss for scores in local.steps], rel=1e-12)
    assert losses["compressed"] != pytest.approx(losses["1f1b"], rel=1e-9)


@pytest.mark.distributed
def test_the_bytes_of_messages_are_those_that_a_profile_predicts(tmp_path):
    """A message pads each tensor to 16 bytes; here only the 8 bytes before a compressed tensor are padded."""
    name = "tests.executor.tuple_models:masked_tokens:layers=4"
    ways = {"whole": None, "halved": "half"}
    jobs = {job: training("1f1b", model=name, num_ranks=3, compression=way) for job, way in ways.items()}
    for job, spec in jobs.items():
        (tmp_path / f"{job}.json").write_text(job_to_json(spec))
    sent = [json.loads(said.splitlines()[-1]) for said in run_module("tests.executor.message_bytes_ranks", 3, tmp_path)]
    settings = ProfilerSettings(microbatch_sizes=(2,), repeats=1, warmup=1, dtype="float64")
    costs = profile_model(tuple_models.masked_tokens(layers=4), settings).costs_of_layers(jobs["whole"].bounds)
    hidden, others = 2 * 8 * 16 * 8, 2 * 8 + 2 * 8 * 8
    for job, hidden_bytes, padding in (("whole", hidden, 0), ("halved", 8 + hidden // 4, 8)):
        costs = replace(costs, compression=Compression(element_bytes=8) if job == "halved" else None)
        for rank in (0, 1):
            there, back = (
                costs.message_bytes(Message(payload, rank + (payload is Payload.GRADIENT), 0)) for payload in Payload
            )
            assert (there, back) == (hidden_bytes + others, hidden_bytes)
            assert sent[rank][job][str(rank + 1)] == [there + padding] * 4 * STEPS
            assert sent[rank + 1][job][str(rank)] == [back + padding] * 4 * STEPS


def test_held_out_samples_of_several_tensors_are_scored():
    spec = training("1f1b", model="fed")
    result = train_locally(training_of(spec, tuple_models.fed(layers=4)))
    losses, _, held_out, _ = plainly(tuple_models.fed(layers=4))
    assert [scores.loss for scores in result.steps] == pytest.approx(losses, rel=1e-12)
    assert result.held_out.loss == pytest.approx(held_out, rel=1e-12)
    assert result.held_out.accuracy is None


def test_a_tensor_without_samples_is_refused():
    model = replace(tuple_models.fed(layers=4), batch=lambda num_samples, seed: ((X, X[:1]), (X, X[:, 0])))
    with pytest.raises(ExecutionError) as raised:
        Local(build("gpipe", 2, 2), model)
    assert str(raised.value) == (
        "model fed: its batch has 1 samples in a tensor of (1, 4), expected 4 in dimension 0 of each tensor; repeat "
        "shared data for each sample"
    )


def test_losses_of_the_whole_model_are_found_with_inputs_and_targets_of_several_tensors():
    schedule, model = build("1f1b", 2, 4), tuple_models.fed(layers=4)
    job = Measure(schedule=to_json(schedule), microbatch_size=2, iterations=1, warmup=0)
    spec = RunSpec(job=job, model="fed", bounds=((0, 2), (2, 4)), dtype="float64", optimizer="sgd", lr=0.1)
    assert whole_model_losses(spec, model) == pytest.approx(whole_run(model, 4)[0], rel=1e-12)
