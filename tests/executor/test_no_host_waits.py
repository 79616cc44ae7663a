"""On a GPU no step blocks the host, no tensor is on the wrong device, and all numbers equal the CPU's."""

from contextlib import nullcontext

import pytest
import torch

from pipesched.executor import RunSettings
from pipesched.executor.core import Batch, Bucket, build_stages, make_batch
from pipesched.executor.runs import local_ranks, run_local
from pipesched.executor.training import LossHistory, ScoreReader, make_feeds
from pipesched.executor.transport import boundary_shapes, find_shapes
from pipesched.profiles.models import resolve_model
from pipesched.schedules import PredictionRule
from pipesched.schedules.builders import build
from pipesched.schedules.transforms import ScheduleSpec
from tests.executor import tuple_models
from tests.executor.pipelines import CPU, assert_equal, even_bounds
from tests.executor.pretended_gpu import GPU, HostWaitsError, MisplacedError, PretendedGpu
from tests.properties import thinned

MLP = "mlp:layers=4,width=8"
GPT = "gpt:layers=2,width=8,heads=2,context=4,dropout=0.2"
STEPS, SIZE = 2, 8

RUNS = {
    "F and B": {"name": "gpipe", "optimizer": "adamw"},
    "I and W": {"name": "zb_h1", "optimizer": "adamw"},
    "R": {"name": "1f1b", "optimizer": "momentum", "recompute": "all"},
    "replicas": {"name": "1f1b", "width": 2, "optimizer": "adamw"},
    "replicas in a rank": {"name": "chimera", "optimizer": "momentum"},
    "stash": {"name": "pipedream", "optimizer": "adamw"},
    "spectrain": {"name": "spectrain", "optimizer": "momentum"},
    "xpipe": {"name": "xpipe", "optimizer": "adam"},
    "own moments": {"name": "xpipe", "optimizer": "sgd", "prediction": PredictionRule.ADAM},
    "averaging": {"name": "avgpipe", "optimizer": "adamw"},
    "clipping": {"name": "1f1b", "optimizer": "adamw", "clip_grad_norm": 0.1},
    "optimizer's own step": {"name": "pipeoptim", "optimizer": "adamw", "prediction": PredictionRule.ZERO},
}


class Trained:
    """A training run in this process, on one device, whose steps are watched."""

    def __init__(self, model, device, gpu=None, *, optimizer, prediction=None, clip_grad_norm=None, **spec):
        barrier = {} if clip_grad_norm is None else {"step_barrier": True}
        run = ScheduleSpec(num_ranks=2, num_microbatches=4, **spec, **barrier).run(STEPS)
        lists = run.lists(STEPS)
        self.told = []
        history = LossHistory(run.microbatches_per_step, lambda step, scores: self.told.append(scores))
        reader = ScoreReader(history.add)
        bounds = even_bounds(len(model.layers), lists.num_stages)

        def built(rank):
            settings = RunSettings(
                optimizer=optimizer, lr=0.01, seed=1, dtype="float64", prediction=prediction,
                clip_grad_norm=clip_grad_norm,
            )  # fmt: skip
            return build_stages(lists, rank, model, bounds, settings, device, on_loss=reader.listen)

        self.ranks = local_ranks(lists, built)
        inputs, targets = make_feeds(
            model,
            SIZE * run.pipelines,
            run.microbatches_per_step,
            lists.num_microbatches,
            seed=1,
            dtype=torch.float64,
            device=device,
        )
        if gpu is None:
            run_local(self.ranks, Batch(inputs, targets))
        else:
            with gpu.no_waits():
                run_local(self.ranks, Batch(inputs, targets))
        reader.finish()

    @property
    def weights(self):
        return [p.detach() for rank in self.ranks for stage in rank.stages.values() for p in stage.parameters]


@pytest.mark.parametrize("run", RUNS)
def test_no_step_keeps_the_host_waiting(run, monkeypatch):
    built = resolve_model(GPT)
    expected = Trained(built, CPU, **RUNS[run])
    with PretendedGpu(monkeypatch) as gpu:
        trained = Trained(built, GPU, gpu, **RUNS[run])
        assert all(gpu.has(weight) for weight in trained.weights)
        assert gpu.copies["to"] > 0
    assert_equal(trained.weights, expected.weights)
    assert [scores.loss for scores in trained.told] == pytest.approx([scores.loss for scores in expected.told])
    assert len(trained.told) == STEPS


@pytest.mark.parametrize(
    ("run", "make"),
    thinned(["F and B", "I and W", "R", "stash", "replicas"], [tuple_models.mixed, tuple_models.fed]),
)
def test_values_of_several_tensors_keep_no_host_waiting(run, make, monkeypatch):
    expected = Trained(make(layers=4), CPU, **RUNS[run])
    with PretendedGpu(monkeypatch) as gpu:
        trained = Trained(make(layers=4), GPU, gpu, **RUNS[run])
    assert_equal(trained.weights, expected.weights)


WAITS = {
    "item": lambda x: x[0].item(),
    "list": lambda x: x.tolist(),
    "truth": lambda x: bool(x.any()),
    "number": lambda x: float(x[0]),
    "text": str,
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 1],
    "equal": lambda x: torch.equal(x, x),
    "array": lambda x: x.numpy(),
    "to the host": lambda x: x.cpu(),
    "to the host in time": lambda x: x.to("cpu", non_blocking=True),
    "to the GPU": lambda x: torch.ones(2).to(x.device),
    "to the GPU from pageable memory": lambda x: torch.ones(2).to(x.device, non_blocking=True),
    "a number": lambda x: torch.tensor([1.0], device=x.device),
    "a new number": lambda x: x.new_tensor([1.0]),
    "a copy": lambda x: x.copy_(torch.ones(6)),
}
MEETINGS = {
    "sum": lambda x: x + torch.ones(6),
    "cat": lambda x: torch.cat([x, torch.ones(1)]),
    "index": lambda x: x[torch.tensor([1])],
    "in place": lambda x: x.mul_(torch.ones(6)),
    "layer": lambda x: torch.nn.Linear(6, 1)(x),
}
ASYNCHRONOUS = {
    "number": lambda x: x * 2 + torch.tensor(2.0),
    "fill": lambda x: torch.cat([x.new_ones(2), torch.zeros(2, device=x.device), torch.full_like(x, 2.0)]),
    "pinned": lambda x: x + torch.ones(6).pin_memory()[:6].to(x.device, non_blocking=True),
    "back": lambda x: torch.empty(6, pin_memory=True).copy_(x, non_blocking=True),
    "storage": lambda x: x.untyped_storage().clone(),
}


@pytest.mark.parametrize("case", WAITS)
def test_what_waits_for_a_gpu_is_refused(case, monkeypatch):
    with PretendedGpu(monkeypatch) as gpu:
        x = torch.arange(6.0, device=GPU)
        with gpu.no_waits(), pytest.raises(HostWaitsError):
            WAITS[case](x)


@pytest.mark.parametrize("case", MEETINGS)
def test_tensors_of_both_devices_that_meet_are_refused(case, monkeypatch):
    with PretendedGpu(monkeypatch), pytest.raises(MisplacedError):
        MEETINGS[case](torch.arange(6.0).to(GPU))


@pytest.mark.parametrize("case", ASYNCHRONOUS)
def test_what_a_gpu_does_by_itself_is_not_refused(case, monkeypatch):
    with PretendedGpu(monkeypatch) as gpu:
        x = torch.arange(6.0, device=GPU)
        with gpu.no_waits():
            ASYNCHRONOUS[case](x)


@pytest.mark.parametrize(("has_all", "waits"), [(True, False), (False, True)])
def test_the_host_waits_for_gradients_only_where_a_replica_lacks_one(has_all, waits, monkeypatch):
    with PretendedGpu(monkeypatch) as gpu:
        made = [torch.nn.Parameter(torch.zeros(2, device=GPU)) for _ in range(2)]
        made[0].grad = torch.ones(2, device=GPU)
        made[1].grad = torch.ones(2, device=GPU) if has_all else None
        bucket = Bucket(made)
        for _ in range(2):
            with nullcontext() if waits else gpu.no_waits():
                bucket.unflatten(2 * bucket.flatten())
    assert made[0].grad.tolist() == [4.0, 4.0]
    assert (made[1].grad is not None) == has_all


@pytest.mark.parametrize("reads", [(True, True), (True, False), (False, True), (False, False)])
def test_a_gpu_gets_the_data_that_are_read_there(reads, monkeypatch):
    model, given = resolve_model(GPT), {"seed": 1, "dtype": torch.float32}
    expected = make_batch(model, 4, 2, device=CPU, **given)
    with PretendedGpu(monkeypatch) as gpu:
        batch = make_batch(model, 4, 2, device=GPU, reads=reads, **given)
        assert gpu.copies["to"] == sum(reads)
        for own, whole, is_read in zip(
            (batch.inputs, batch.targets), (expected.inputs, expected.targets), reads, strict=True
        ):
            assert len(own) == 4 * is_read
            assert all(gpu.has(tensor) for tensor in own)
            assert [tensor.tolist() for tensor in own] == [tensor.tolist() for tensor in whole[: len(own)]]


def test_a_gpu_holds_the_micro_batches_that_are_in_use(monkeypatch):
    model = resolve_model(MLP)
    with PretendedGpu(monkeypatch) as gpu:
        inputs, _ = make_feeds(model, 8, 4, 400, seed=1, dtype=torch.float64, device=GPU)
        with gpu.no_waits():
            held = [inputs[index] for index in range(20)]
            assert gpu.held_bytes == sum(x.nbytes for x in held) == 20 * 2 * 8 * 8
            del held[5:]
            assert gpu.held_bytes == 5 * 2 * 8 * 8
        assert gpu.copies["to"] == 20  # and no targets


def test_shapes_are_found_with_inputs_on_the_device_of_the_stage(monkeypatch):
    monkeypatch.setattr(boundary_shapes, "share", lambda text, owner, what: text)
    model, schedule = resolve_model(GPT), build("interleaved", 1, 2, num_chunks=2)
    with PretendedGpu(monkeypatch):
        settings = RunSettings(optimizer="sgd", lr=0.1, dtype="float64")
        stages = build_stages(schedule, 0, model, even_bounds(len(model.layers), 2), settings, GPU)
        sample = make_batch(model, 2, 3, seed=0, dtype=torch.float64, device=GPU).inputs[0]
        assert find_shapes(schedule, 0, stages, sample)[0].size == (3, 4, 8)
