"""Small pipelines for the tests: ranks in one process, jobs for several, and the model as one piece."""

from __future__ import annotations

import contextlib
from dataclasses import fields, replace
from functools import partial
from random import Random

import torch

from pipesched.executor import RunSettings
from pipesched.executor.core import HostClock, Recorder, build_stages, make_batch
from pipesched.executor.core.layer_rng import draw_seed
from pipesched.executor.launch import Measure, RunSpec
from pipesched.executor.runs import local_ranks, run_local
from pipesched.executor.training.batches import step_seed
from pipesched.executor.transport import LocalTransport
from pipesched.profiles.models import Model, build_layers, resolve_model
from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.formats import to_json
from pipesched.schedules.lowering import lower

MLP = "mlp:layers=6,width=8"
SYNCHRONOUS = [
    name for name, entry in CATALOGUE.items() if not entry.traits.is_asynchronous and not entry.traits.averages
]
CPU = torch.device("cpu")


def even_bounds(num_layers, num_stages):
    """Cut layers into stages of nearly equal number."""
    return tuple((s * num_layers // num_stages, (s + 1) * num_layers // num_stages) for s in range(num_stages))


def any_schedule(name, num_ranks, seed):
    """Build `name` on some number of micro-batches, two stages a rank where it takes several; None if none fits."""
    chunks = {"num_chunks": 2} if CATALOGUE[name].traits.takes_chunks else {}
    counts = list(range(1, 2 * num_ranks + 1))
    Random(seed).shuffle(counts)
    for num_microbatches in counts:
        with contextlib.suppress(ScheduleError):
            return build(name, num_ranks, num_microbatches, **chunks)
    return None


class Calls:
    """A list that tells instead of keeping."""

    def __init__(self, listen):
        self._listen = listen

    def append(self, item):
        self._listen(*item)


class InProcess:
    """The `ranks` of a `schedule` in this process, by what they hold."""

    def stage(self, index):
        return next(rank.stages[index] for rank in self.ranks if index in rank.stages)

    @property
    def parameters(self):
        """Of the whole model, in order of the stages."""
        return [p for index in range(self.schedule.num_stages) for p in self.stage(index).module.parameters()]


class Local(InProcess):
    """All ranks of a schedule in this process."""

    def __init__(
        self, schedule, model=MLP, *, optimizer="sgd", lr=0.05, seed=0, size=2,
        transport=LocalTransport, lowering=lower, bounds=None, prediction=None, averaging="asynchronous",
        dtype=torch.float64, clip_grad_norm=None, learning=None,
    ):  # fmt: skip
        self.schedule = schedule = lowering(schedule)
        self.averaging = averaging
        self.model = model if isinstance(model, Model) else resolve_model(model)
        self.bounds = bounds or even_bounds(len(self.model.layers), schedule.num_stages)
        self.batch = make_batch(self.model, schedule.num_microbatches, size, seed=seed, dtype=dtype, device=CPU)
        self.heard = []  # (rank, index) before each op
        settings = RunSettings(
            optimizer=optimizer,
            lr=lr,
            seed=seed,
            dtype=str(dtype).removeprefix("torch."),
            prediction=prediction,
            clip_grad_norm=clip_grad_norm,
        )

        def built(rank):
            return build_stages(schedule, rank, self.model, self.bounds, settings, CPU, learning=learning)

        def connected(rank, room):
            self.room = room
            return transport(rank, room)

        def listen(rank, index, op):
            self.heard.append((rank, index))

        self.ranks = [
            replace(rank, at=partial(listen, rank.rank))
            for rank in local_ranks(schedule, built, averaging, connected, recorder=lambda _: Recorder(HostClock()))
        ]

    def run(self, times=1):
        for _ in range(times):
            run_local(self.ranks, self.batch)
        return self

    def replicas(self, index):
        return [rank.stages[index] for rank in self.ranks if index in rank.stages]


def whole_model(text, num_samples, seed=0):
    """Return (module, inputs, targets, loss) of the model in one piece, in float64."""
    model = resolve_model(text)
    module = build_layers(model, 0, len(model.layers), seed=seed, dtype=torch.float64)
    inputs, targets = (x.double() if x.is_floating_point() else x for x in model.batch(num_samples, seed))
    return module, inputs, targets, model.loss


def parts_of(value, count):
    """Cut a batch, a tensor or a tuple of tensors, into parts, in float64."""
    if isinstance(value, tuple):
        return list(zip(*(parts_of(tensor, count) for tensor in value), strict=True))
    return list((value.double() if value.is_floating_point() else value).chunk(count))


def whole_run(model, num_microbatches, seed=0, size=2):
    """Run `model` in one piece, one micro-batch after the other, in float64.

    What a layer draws belongs to (seed, layer, run, micro-batch) and to nothing else.

    Returns:
        The loss of each micro-batch, and the gradients of the mean loss, each a tensor or None.
    """
    module = build_layers(model, 0, len(model.layers), seed=seed, dtype=torch.float64)
    inputs, targets = (parts_of(value, num_microbatches) for value in model.batch(size * num_microbatches, seed))
    losses = []
    for i, (x, y) in enumerate(zip(inputs, targets, strict=True)):
        for number, layer in enumerate(module):
            torch.default_generator.manual_seed(draw_seed(seed, number, 0, i))
            x = layer(x)
        losses.append(model.loss(x, y))
        (losses[-1] / num_microbatches).backward()
    return [loss.item() for loss in losses], [parameter.grad for parameter in module.parameters()]


def whole_gradients(model, num_microbatches, seed=0, size=2):
    return whole_run(model, num_microbatches, seed, size)[1]


def plain_loop(model, num_steps, batch_size=16, make=None, rate=lambda step: 1.0, seed=3):
    """Train the whole model in float64, by momentum or the optimizer that `make` returns for its parameters.

    The learning rate of step k is multiplied by rate(k).

    Returns:
        (losses, accuracies) of the steps, then loss and accuracy of the held-out samples; accuracies are None if there
        are no classes, and the last two if there are no such samples.
    """
    module = build_layers(model, 0, len(model.layers), seed=seed, dtype=torch.float64)
    make = make or (lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9))
    optimizer = make(module.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    def judged(samples):
        (x,), (y,) = (parts_of(value, 1) for value in samples)
        output = module(x)
        has_classes = isinstance(y, torch.Tensor) and not y.is_floating_point()
        return model.loss(output, y), (output.argmax(-1) == y).double().mean().item() if has_classes else None

    losses, accuracies = [], []
    for step in range(num_steps):
        loss, accuracy = judged(model.batch(batch_size, step_seed(seed, step)))
        losses.append(loss.item())
        accuracies.append(accuracy)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    if model.held_out is None:
        return losses, accuracies, None, None
    loss, accuracy = judged(model.held_out())
    return losses, accuracies, loss.item(), accuracy


def assert_equal(tensors, expected, relative=1e-12):
    """Compare lists of tensors against the largest value of all."""
    tensors, expected = list(tensors), list(expected)
    assert len(tensors) == len(expected) > 0
    scale = max(tensor.abs().max().item() for tensor in expected)
    for a, b in zip(tensors, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=relative * scale)


def job(schedule, model=MLP, **given):
    """Return a run in several processes that measures."""
    given = {
        "iterations": 1,
        "warmup": 0,
        "dtype": "float64",
        "microbatch_size": 2,
        "optimizer": "sgd",
        "lr": 0.05,
    } | given
    num_layers = 0 if model is None else len(resolve_model(model).layers)
    bounds = () if model is None else even_bounds(num_layers, schedule.num_stages)
    own = {field.name: given.pop(field.name) for field in fields(Measure) if field.name in given}
    return RunSpec(job=Measure(schedule=to_json(schedule), **own), model=model, bounds=bounds, **given)
