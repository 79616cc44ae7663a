"""A pipeline in one's own loop learns the same as the un-pipelined layers in a plain loop of PyTorch."""

import copy
import gc

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR

import pipesched
from pipesched.profiles.models import build_layers
from tests.executor.models import WIDTH, dropping, plain
from tests.executor.pipelines import SYNCHRONOUS, any_schedule, assert_equal

LAYERS = 16
SIZE = 3


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def batches(count, num_samples, seed=7):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        inputs = torch.randn(num_samples, WIDTH, dtype=torch.float64, generator=generator)
        yield inputs, inputs.flip(1)


def pipeline(schedule="1f1b", **given):
    """Return a pipeline of two ranks and four micro-batches."""
    counts = {} if isinstance(schedule, pipesched.Schedule) else {"num_ranks": 2, "microbatches": 4}
    example = torch.zeros(SIZE, WIDTH, dtype=torch.float64)
    given = {"optimizer": momentum, "example": example, "dtype": torch.float64} | counts | given
    return pipesched.Pipeline(given.pop("module", plain(LAYERS)), schedule=schedule, **given)


def whole(model=None):
    """Return the layers in one piece."""
    model = model or plain(LAYERS)
    return build_layers(model, 0, len(model.layers), seed=0, dtype=torch.float64)


def plain_loop(module, data, optimizer=momentum, max_norm=None, accumulate=1, rate=None):
    """Return the losses of a loop of PyTorch, in which nothing is pipelined."""
    optimizer, losses = optimizer(module.parameters()), []
    scheduler = None if rate is None else LambdaLR(optimizer, rate)
    for step, (inputs, targets) in enumerate(data, 1):
        loss = functional.mse_loss(module(inputs), targets)
        (loss / accumulate).backward()
        losses.append(loss.item())
        if step % accumulate == 0:
            if max_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
    return losses


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_losses_and_weights_are_those_of_a_plain_loop(name):
    schedule = any_schedule(name, 4, 0) or any_schedule(name, 2, 0)
    num_samples = SIZE * schedule.num_microbatches
    with pipeline(schedule) as pipe:
        losses = [pipe.step(*batch).item() for batch in batches(3, num_samples)]
        weights = pipe.state_dict()
    module = whole()
    assert losses == pytest.approx(plain_loop(module, batches(3, num_samples)), rel=1e-12)
    assert list(weights) == list(module.state_dict())
    assert_equal(weights.values(), [tensor.detach() for tensor in module.state_dict().values()])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_step_learns_in_any_mode_of_the_script(mode):
    data = list(batches(3, 12))
    with pipeline() as pipe, mode():
        losses = [pipe.step(*batch).item() for batch in data]
    assert losses == pytest.approx(plain_loop(whole(), batches(3, 12)), rel=1e-12)


def test_gradients_are_clipped_by_the_norm_of_the_whole_model():
    with pipeline(clip_grad_norm=0.05) as pipe:
        losses = [pipe.step(*batch).item() for batch in batches(4, 12)]
    assert losses == pytest.approx(plain_loop(whole(), batches(4, 12), max_norm=0.05), rel=1e-9)


@pytest.mark.parametrize("name", ["1f1b", "chimera", "zb_h1"])
@pytest.mark.parametrize("max_norm", [None, 0.05])
def test_batches_accumulate_until_an_update(name, max_norm):
    with pipeline(name, clip_grad_norm=max_norm) as pipe:
        losses = [pipe.step(*batch, update=number % 3 == 2).item() for number, batch in enumerate(batches(6, 12))]
    assert losses == pytest.approx(plain_loop(whole(), batches(6, 12), max_norm=max_norm, accumulate=3), rel=1e-9)


def test_learning_rates_follow_the_schedulers_of_pytorch():
    def rate(step):
        return 0.5**step

    with pipeline() as pipe:
        schedulers = [LambdaLR(optimizer, rate) for optimizer in pipe.optimizers]
        losses = []
        for batch in batches(5, 12):
            losses.append(pipe.step(*batch).item())
            for scheduler in schedulers:
                scheduler.step()
    assert losses == pytest.approx(plain_loop(whole(), batches(5, 12), rate=rate), rel=1e-12)


def test_a_state_can_be_taken_out_and_put_back():
    with pipeline() as pipe:
        before = pipe.state_dict()
        first = [pipe.step(*batch).item() for batch in batches(1, 12)]
        pipe.load_state_dict(before)
        again = [pipe.step(*batch).item() for batch in batches(1, 12)]
    assert first == again
    module = whole()
    module.load_state_dict(before)
    assert_equal(before.values(), module.state_dict().values(), 0)


@pytest.mark.parametrize("count", [1, 4, 6])
def test_an_evaluation_changes_nothing(count):
    """Neither modes, nor generators, nor the random numbers of later steps."""
    (inputs, targets), data = next(batches(1, SIZE * count)), list(batches(3, 12))
    model = dropping(LAYERS)
    with pipeline(module=model) as pipe, pipeline(module=model) as other:
        states = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
        for number, batch in enumerate(data):
            loss = pipe.evaluate(inputs, targets)
            outputs = pipe.evaluate(inputs)
            module = whole(model).eval()
            module.load_state_dict(pipe.state_dict())
            assert_equal([outputs], [module(inputs).detach()])
            assert loss.item() == pytest.approx(functional.mse_loss(module(inputs), targets).item(), rel=1e-12)
            assert pipe.step(*batch).item() == other.step(*batch).item(), number
        assert torch.equal(states[0], torch.get_rng_state())
        assert states[1] == np.random.get_state()[1].tolist()  # noqa: NPY002


def test_a_recorded_step_gives_a_timeline():
    with pipeline("gpipe") as pipe:
        with pytest.raises(pipesched.ArgumentError, match="no recorded step, expected at least one; try step"):
            pipe.timeline()
        (batch,) = batches(1, 12)
        losses = pipe.step(*batch), pipe.step(*batch, record=True), pipe.step(*batch)
        timeline = pipe.timeline()
    assert losses[0] > losses[1] > losses[2]
    computed = [str(span.op) for span in timeline.spans if str(span.op).lstrip("0123456789")[0] in "FB"]
    assert len(computed) == 2 * 2 * 4
    assert timeline.makespan_s > 0
    assert timeline.peak_bytes if hasattr(timeline, "peak_bytes") else timeline.memory


def test_a_block_leaves_nothing_behind():
    threads, frozen = torch.get_num_threads(), gc.get_freeze_count()
    with pipeline() as pipe:
        pipe.step(*next(batches(1, 12)))
    assert (torch.get_num_threads(), gc.get_freeze_count()) == (threads, frozen)
    pipe.close()
    with pytest.raises(pipesched.ExecutionError, match="got a call after the pipeline closed, expected none"):
        pipe.step(*next(batches(1, 12)))


BAD = {
    "schedule pipedream: got a schedule that steps while micro-batches are in flight, expected a flush": {
        "schedule": "pipedream"
    },
    "schedule avgpipe: got a schedule that": {"schedule": "avgpipe"},
    "num_ranks: got none with schedule 1f1b": {"num_ranks": None},
    "microbatches: got 8, expected 4": {"schedule": pipesched.build("1f1b", 2, 4), "microbatches": 8},
    "schedule: got 3, expected a name": {"schedule": 3},
    "dtype: got 'half'": {"dtype": "half"},
    "optimizer: got a function that returns int, expected an optimizer": {"optimizer": lambda parameters: 1},
    "optimizer: got an optimizer that ignores the parameters in its argument": {
        "optimizer": lambda parameters: momentum(nn.Linear(1, 1).parameters())
    },
    "optimizer: got 1, expected a function": {"optimizer": 1},
    "example: got Tensor, expected": {"example": object()},
    r"example: got tensors of \(\), expected inputs of one micro-batch": {"example": torch.zeros(())},
    "clip_grad_norm: got -1, expected a number above 0": {"clip_grad_norm": -1},
    "device: got 'tpu', expected one of": {"device": "tpu"},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arguments_are_refused_in_one_line(message):
    with pytest.raises(ValueError, match=message.replace("Tensor", "object")) as error:
        pipeline(**BAD[message])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (torch.zeros(13, WIDTH).double(), None, "inputs: got 13 samples, expected 12, 4 micro-batches of 3; try a"),
        (
            torch.zeros(12, 5).double(),
            None,
            r"inputs: got a tensor of torch.float64, \(12, 5\), expected torch.float64",
        ),
        (torch.zeros(8, WIDTH).double(), None, r"inputs: got 8 samples, .*; try example=inputs\[:2\], or a DataLoader"),
        (torch.zeros(12, WIDTH), None, r"inputs: got a tensor of torch.float32, .*; try .to\(torch.float64\)"),
        ((torch.zeros(12, WIDTH), torch.zeros(12, WIDTH)), None, "inputs: got 2 tensors, expected 1"),
        ("text", None, "inputs: got str, expected a tensor, or a tuple or dictionary of tensors"),
        (torch.zeros(12, WIDTH).double(), torch.zeros(3), r"targets: got a tensor of \(3,\), expected 12 samples"),
    ],
)
def test_bad_batches_are_refused_and_the_loop_continues(inputs, targets, message):
    with pipeline() as pipe:
        with pytest.raises(pipesched.ArgumentError, match=message):
            pipe.step(inputs, targets)
        pipe.step(*next(batches(1, 12)))


def test_a_loss_with_dimensions_is_refused_and_the_pipeline_is_closed():
    pipe = pipeline(loss=lambda outputs, targets: functional.mse_loss(outputs, targets, reduction="none"))
    with pytest.raises(pipesched.ExecutionError, match=r"loss: got a tensor of \(3, 4\), expected a tensor without"):
        pipe.step(*next(batches(1, 12)))
    with pytest.raises(pipesched.ExecutionError, match="got a call after the pipeline has failed, expected none"):
        pipe.evaluate(next(batches(1, 12))[0])


def test_a_loss_without_gradient_is_refused():
    with (
        pytest.raises(
            pipesched.ExecutionError, match="loss: got a tensor without a gradient, expected a loss that depends"
        ),
        pipeline(loss=lambda outputs, targets: functional.mse_loss(outputs.detach(), targets)) as pipe,
    ):
        pipe.step(*next(batches(1, 12)))


def test_a_state_of_another_module_is_refused():
    with pipeline() as pipe:
        state = pipe.state_dict()
        lacking, longer = dict(list(state.items())[1:]), state | {"other": torch.zeros(1)}
        wide = state | {"3.linear.bias": torch.zeros(5)}
        for wrong, message in (
            (lacking, "state: tensor '0.linear.weight': got no tensor of this name, expected float64 of shape"),
            (longer, "state: tensor 'other': got a tensor of this name, expected none"),
            (wide, "state: tensor '3.linear.bias': got float32 of shape .5,., expected float64 of shape .4,."),
        ):
            with pytest.raises(pipesched.ArgumentError, match=message):
                pipe.load_state_dict(copy.deepcopy(wrong))
        pipe.load_state_dict(state)
