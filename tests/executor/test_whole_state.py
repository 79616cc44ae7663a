"""Weights of the whole model go into stages and out of them: the state dict of the plain module is the oracle."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import pipesched
from pipesched.executor import ExecutionError
from pipesched.executor.core import StateError, load_whole_state, weight_file, whole_state
from pipesched.executor.emulation import emulated_stages
from pipesched.executor.training import save_stages
from pipesched.profiles.costs import uniform
from pipesched.profiles.models import Model, build_layers, resolve_model
from pipesched.schedules.ops import forward
from pipesched.schedules.transforms import ScheduleSpec
from tests.executor.tied_models import MODELS

BOUNDS = ((0, 3), (3, 6), (6, 8))
TIED = MODELS["three_places"]


def stages_of(model, bounds=BOUNDS):
    return {number: build_layers(model, *bound, seed=0) for number, bound in enumerate(bounds)}


def drawn(module):
    """Return the state dict of a module with new numbers, in which shared tensors are equal."""
    module = copy.deepcopy(module)
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data.copy_(torch.rand(tensor.shape) if tensor.is_floating_point() else torch.randint(9, tensor.shape))
    return module.state_dict()


@pytest.fixture(params=["three_places", "conv:channels=4,blocks=1,image=8", "mlp:layers=8,width=4"])
def model(request):
    return resolve_model(MODELS.get(request.param, request.param))


def even(model):
    size = len(model.layers)
    return ((0, size // 2), (size // 2, size))


def test_a_state_goes_into_the_stages_and_comes_out_again(model, tmp_path):
    state = drawn(build_layers(model, 0, len(model.layers), seed=0))
    save_file({name: tensor.clone() for name, tensor in state.items()}, tmp_path / "whole.safetensors")
    stages, came_out = stages_of(model, even(model)), {}
    for number, module in stages.items():  # each rank for itself
        with weight_file(tmp_path / "whole.safetensors") as file:
            load_whole_state(model, even(model), {number: module}, file)
        came_out |= whole_state(model, even(model), {number: module})
    assert came_out.keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in came_out.items())


def test_a_rank_reads_only_its_tensors():
    model, read = resolve_model("mlp:layers=8,width=4"), []

    class Noted(dict):
        def __getitem__(self, name):
            read.append(name)
            return super().__getitem__(name)

    state = Noted(build_layers(model, 0, 8, seed=1).state_dict())
    load_whole_state(model, BOUNDS, {1: build_layers(model, *BOUNDS[1], seed=0)}, state)
    assert {name.partition(".")[0] for name in read} <= {"3", "4", "5"}


def test_one_name_of_a_tied_tensor_is_enough():
    model = resolve_model(TIED)
    state = drawn(build_layers(model, 0, 8, seed=0))
    del state["3.table.weight"], state["7.embedding.weight"]
    stages = stages_of(model)
    load_whole_state(model, BOUNDS, stages, state)
    for name in ("0.weight", "3.table.weight", "7.embedding.weight"):
        assert torch.equal(whole_state(model, BOUNDS, stages)[name], state["0.weight"])


def named_as_module():
    """Return a module of the user's, and its model, whose layers have the names of the module."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.middle = nn.Embedding(5, 3), nn.Linear(3, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.table.weight

    def build_range(first, last, seed):
        net, parts = Net(), ("table", "middle", "head")
        layers = []
        for part in parts[first:last]:
            layer = nn.Module()
            layer.add_module(part, getattr(net, part))
            layers.append(layer)
        return layers

    names = {"table.weight": "table.weight", "middle.weight": "middle.weight", "middle.bias": "middle.bias"}
    model = Model(
        "net", (nn.Identity,) * 3, ("a", "b", "c"), nn.functional.mse_loss, lambda n, seed: None,
        build_range=build_range, ties=(((0, "table.weight"), (2, "head.weight")),),
        state_names=names | {"head.weight": "head.weight"},
    )  # fmt: skip
    return Net(), model


@pytest.mark.parametrize("bounds", [((0, 3),), ((0, 1), (1, 3)), ((0, 1), (1, 2), (2, 3))])
@pytest.mark.parametrize("left_out", [None, "table.weight", "head.weight"])
def test_layers_may_have_the_names_of_the_module(bounds, left_out):
    net, model = named_as_module()
    state = drawn(net)
    stages = stages_of(model, bounds)
    load_whole_state(model, bounds, stages, {name: tensor for name, tensor in state.items() if name != left_out})
    net.load_state_dict(whole_state(model, bounds, stages))
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())


def test_a_tensor_of_several_names_in_one_layer_is_written_under_all_of_them():
    layer = nn.Linear(3, 3)
    model = Model(
        "twice", (lambda: copy.deepcopy(layer),), ("a",), nn.functional.mse_loss, lambda n, seed: None,
        state_names={"first.weight": "weight", "again.weight": "weight", "bias": "bias"},
    )  # fmt: skip
    stages = stages_of(model, ((0, 1),))
    state = whole_state(model, ((0, 1),), stages)
    assert state.keys() == {"first.weight", "again.weight", "bias"}
    with pytest.raises(
        StateError, match=r"'again\.weight': got other numbers than in 'first\.weight', expected equal numbers"
    ):
        load_whole_state(model, ((0, 1),), stages, state | {"again.weight": torch.zeros(3, 3)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("4.0.weight"), r"'4\.0\.weight': got no tensor of this name, expected float32 of shape \(6, "),
        (lambda s: s.update({"4.extra": torch.zeros(1)}), r"'4\.extra': got a tensor of this name, expected none$"),
        (lambda s: s.update({"8.weight": torch.zeros(1)}), r"'8\.weight': got a tensor of this name, expected none$"),
        (lambda s: s.update({"net.w": s.pop("4.0.bias")}), r"'net\.w': got a .*, .* lacks '4\.0\.bias'"),
        (lambda s: s.update({"1.0.bias": torch.zeros(7)}), r"'1\.0\.bias': got float32 of shape \(7,\), expected"),
        (lambda s: s.update({"3.gain": torch.zeros(6)}), r"'6\.gain': got other numbers than in '3\.gain'|'3\.gain'"),
    ],
)  # fmt: skip
def test_a_state_that_does_not_fit_is_refused(change, message):
    model = resolve_model(TIED)
    state = build_layers(model, 0, 8, seed=0).state_dict()
    change(state)
    with pytest.raises(StateError, match=message) as raised:
        load_whole_state(model, BOUNDS, stages_of(model), state)
    assert "\n" not in str(raised.value)


def test_files_that_are_no_weights_are_refused(tmp_path):
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    for name in ("bad.safetensors", "missing.safetensors"):
        with (
            pytest.raises(ExecutionError, match=rf"^weights: .*{name}: got .*; check the path$"),
            weight_file(tmp_path / name),
        ):
            raise AssertionError


@pytest.mark.parametrize("name", ["missing", "no"])
def test_a_run_without_its_weights_does_not_begin(name, tmp_path):
    (tmp_path / "no").write_text("no")
    path, lists = str(tmp_path / name), pipesched.build("1f1b", 2, 4)
    with pytest.raises(pipesched.ArgumentError, match=rf"^weights: {path}: got .*, expected a safetensors file; check"):
        pipesched.run(lists, TIED, weights=path)
    with pytest.raises(pipesched.ArgumentError, match=rf"^weights: {path}: got "):
        pipesched.verify(TIED, [lists], weights=path)


def test_emulated_stages_take_and_save_no_weights(tmp_path):
    stages = emulated_stages([forward(0, 0)], uniform(1, 0.01, 0.02), "sleep")
    with pytest.raises(ExecutionError, match=r"save: got .*, expected none: stage 0 is emulated and has no weights"):
        save_stages(tmp_path, None, [], stages)
    save_file({}, tmp_path / "none.safetensors")
    costs = pipesched.Setup(uniform(2, 0.01, 0.02))
    with pytest.raises(ExecutionError, match=r"weights: got .* with costs to emulate, expected none: emulated stages"):
        pipesched.run(pipesched.build("1f1b", 2, 4), costs, weights=str(tmp_path / "none.safetensors"))


@pytest.mark.distributed
def test_runs_begin_with_the_weights_of_a_file_and_save_what_becomes_of_them(tmp_path):
    """The first batch has the losses of the plain module with these weights; files and export have its weights after.

    The files of the stages have its names together, also if a stage has a tensor under two names.
    """
    model, path = resolve_model(TIED), tmp_path / "whole.safetensors"
    module = build_layers(model, 0, 8, seed=0, dtype=torch.float64)
    module.load_state_dict(drawn(module))
    save_file({name: tensor.clone() for name, tensor in module.state_dict().items()}, path)
    inputs, targets = model.batch(8, 0)
    loss = model.loss(module(inputs), targets)
    asked = {"optimizer": "sgd", "lr": 0.1, "dtype": "float64", "weights": str(path)}
    run = pipesched.run(
        pipesched.build("1f1b", 2, 4), TIED, microbatch_size=2, iterations=1, warmup=0, save=str(tmp_path),
        partition="7,1", **asked,
    )  # fmt: skip
    assert run.first_loss == pytest.approx(loss.item(), rel=1e-12)
    loss.backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    first, last = (load_file(tmp_path / f"stage{stage}.safetensors") for stage in range(2))
    assert last.keys() == {"7.embedding.weight"}
    states = [first | last]
    spec = ScheduleSpec(name="1f1b", num_ranks=2, num_microbatches=4)
    for is_distributed in (False, True):
        export = tmp_path / f"after{is_distributed}.safetensors"
        pipesched.train(TIED, spec, batch_size=8, num_steps=1, is_distributed=is_distributed, export=export, **asked)
        states.append(load_file(export))
    for state in states:
        assert state.keys() == module.state_dict().keys()
        for name, tensor in state.items():
            torch.testing.assert_close(tensor, module.state_dict()[name], rtol=0, atol=1e-12)


def test_weights_of_another_model_end_a_run_with_one_line(tmp_path):
    save_file({"0.weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    spec = ScheduleSpec(name="1f1b", num_ranks=2, num_microbatches=4)
    with pytest.raises(
        ExecutionError, match=r"weights: .*other\.safetensors: tensor '.*': got .*; try the state"
    ) as raised:
        pipesched.train(TIED, spec, batch_size=8, num_steps=1, weights=str(tmp_path / "other.safetensors"))
    assert "\n" not in str(raised.value)
