"""Modules of others as layers, against the whole module in float64 by PyTorch's autograd."""

import copy
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import pipesched
from pipesched.profiles.measuring import ProfilerSettings, profile_model
from pipesched.profiles.models import build_layers, mapped, tensors_of, trace_model
from pipesched.schedules.common import users_lines
from tests.profiles.models.chains import Chain
from tests.profiles.models.tiny_modules import ALL, CLASSES, gpt2, lstm

LAYERS = {
    "gpt2": "transformer.wte transformer.h.0 transformer.h.1 transformer.h.2 lm_head",
    "llama": "model.embed_tokens model.layers.0 model.layers.1 model.layers.2 lm_head",
    "t5": (
        "encoder.embed_tokens encoder.block.0 encoder.block.1 encoder.block.2 "
        "decoder.embed_tokens decoder.block.0 decoder.block.1 decoder.block.2 lm_head"
    ),
    "lstm": "embedding lower.0 lower.1 lower.2 upper.0 upper.1 head",
}
TRACED_AGAIN = ("resnet", "lstm")
"""Models that get another number of samples too, for which layers are traced again."""


@cache
def chain_of(name):
    """Return the chain of a tiny module, traced once; tests change its module and its layers alike."""
    return Chain(ALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_layers_equal_the_whole_module(name):
    chain = chain_of(name)
    chain.layers.zero_grad()
    for num_samples, seed in ((2, 1), (3, 2)) if name in TRACED_AGAIN else ((2, 1),):
        loss, _ = chain.run_layers(num_samples, seed)
        assert abs(loss - chain.run_plain(num_samples, seed)) <= 1e-14
    assert chain.worst_gradient() <= 1e-10
    assert chain.different_buffers() == []
    if name in LAYERS:
        assert " ".join(chain.model.layer_names) == LAYERS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_eval_mode_equals_the_whole_module(name):
    chain = Chain(gpt2_with_dropout) if name == "gpt2" else chain_of(name)
    chain.run_layers(2, 0)
    chain.run_plain(2, 0)
    chain.layers.eval()
    chain.plain.eval()
    inputs, _ = chain.batch(3, 1)
    with torch.no_grad():
        value = chain.layers(chain.model.batch(3, 1)[0])
        assert torch.equal(tensors_of(value)[0], chain.plain(**inputs)["logits"])
    chain.layers.train()
    assert all(module.training for module in chain.layers.modules())


def gpt2_with_dropout():
    return gpt2(dropout=0.5)


def test_layers_have_the_names_of_the_module_and_share_its_tied_parameters():
    chain = chain_of("lstm")
    assert chain.model.ties == (((0, "embedding.weight"), (6, "head.weight")),)
    assert [*chain.layers[1].state_dict()] == [f"lower.0.{name}" for name in nn.LSTM(1, 1).state_dict()]
    assert chain.layers[0].get_parameter("embedding.weight") is chain.layers[6].get_parameter("head.weight")


class Skipping(nn.Module):
    """A skip connection over all blocks, an integer and a boolean input used late, a batch norm, changes in place."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Linear(6, 6)) for _ in range(3)
        )
        self.head = nn.Linear(6, CLASSES)
        self.scale = torch.arange(6.0)
        self.register_buffer("shift", torch.ones(6))
        self.unused = nn.Linear(2, 2)

    def forward(self, x, which, keep):
        skip = x = self.stem(x) + self.shift
        for block in self.blocks:
            x = functional.dropout(block(x), 0.0)
            x += self.shift.to(x.dtype) * torch.tensor([2.0], dtype=x.dtype)
        x = x * self.scale.to(x.dtype) + skip
        return self.head(torch.where(keep, x, -x)) + functional.one_hot(which, CLASSES), None


def skipping(module=Skipping):
    def loss(outputs, targets):
        scores, nothing = outputs
        assert nothing is None
        return functional.cross_entropy(scores, targets["classes"])

    def batch(num_samples, seed):
        generator = torch.Generator().manual_seed(seed)
        which = torch.randint(CLASSES, (num_samples,), generator=generator)
        x = torch.randn(num_samples, 4, generator=generator)
        return (x, which, x[:, :1] > 0), {"classes": which.flip(0), "nothing": None}

    return module(), loss, batch


def test_skips_and_inputs_used_late_are_carried_over_the_cuts():
    chain = Chain(skipping)
    assert chain.model.layer_names == ("stem", "blocks.0", "blocks.1", "blocks.2", "head")
    loss, values = chain.run_layers(4, 1)
    assert loss == chain.run_plain(4, 1)
    assert chain.worst_gradient() == 0.0
    assert chain.different_buffers() == []
    assert sorted(str(t.dtype) for t in tensors_of(values[2])) == [
        "torch.bool",
        "torch.float64",
        "torch.float64",
        "torch.int64",
    ]
    names = [name for layer in chain.layers for name in layer.state_dict()]
    assert set(names) == {*chain.plain.state_dict()}


def test_copies_of_a_layer_have_weights_of_their_own():
    chain = Chain(skipping)
    layer, copied = chain.layers[1], copy.deepcopy(chain.layers[1])
    value = tensors_of(chain.run_layers(4, 1)[1][1])
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    carried = zip(tensors_of(layer(tuple(value))), tensors_of(copied(tuple(value))), strict=True)
    assert [torch.equal(a, b) for a, b in carried].count(False) == 1
    assert copied.get_parameter("blocks.0.2.weight").count_nonzero() == 0
    assert layer.get_parameter("blocks.0.2.weight").count_nonzero() > 0


class Marked(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.first(x).relu()
        pipesched.cut_point()
        x = x + 1
        pipesched.cut_point()
        return self.second(x)


def marked():
    return Marked(), functional.mse_loss, lambda n, seed: (torch.randn(n, 4), torch.randn(n, 4))


def test_marks_in_forward_are_the_cuts():
    module, loss, batch = marked()
    model = trace_model("marked", module, loss, batch)
    assert model.layer_names == ("first", "operations", "second")
    layers = build_layers(model, 0, 3, seed=0)
    x = torch.randn(3, 4)
    assert torch.equal(layers(x), module(x))
    assert [len([*layer.parameters()]) for layer in layers] == [2, 0, 2]


def test_named_cuts_take_the_place_of_blocks():
    module, loss, batch = skipping()
    model = trace_model("skipping", module, loss, batch, cuts=["blocks.2.1", "blocks.1"])
    assert model.layer_names == ("stem", "blocks.1", "blocks.2.1")


def test_children_are_the_layers_of_a_module_without_lists():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.out = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, CLASSES)

        def forward(self, x):
            return self.out(self.norm(self.conv(x).relu()).mean((2, 3)))

    model = trace_model("plain", Plain(), functional.cross_entropy, None, example=torch.randn(2, 3, 8, 8))
    assert model.layer_names == ("conv", "norm", "out")


def test_a_layer_runs_in_the_number_type_it_is_converted_to():
    module, _, batch = skipping()
    model = trace_model("skipping", module, functional.mse_loss, batch)
    layers = build_layers(model, 0, 5, seed=0, dtype=torch.bfloat16)
    value = mapped(lambda t: t.bfloat16() if t.is_floating_point() else t, model.batch(4, 0)[0])
    assert layers(value).dtype == torch.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize(("name", "has_mask"), [("gpt2", False), ("llama", True)])
def test_attention_without_padding_reads_no_mask(name, has_mask):
    chain = chain_of(name)
    masks = []

    class Attention(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "scaled_dot_product" in str(function):
                masks.append((kwargs or {}).get("attn_mask"))
            return function(*args, **(kwargs or {}))

    chain.run_layers(2, 0)  # traces
    with Attention():
        chain.layers(chain.model.batch(2, 0)[0])
    assert [mask is not None for mask in masks] == [has_mask] * 3


class Moving(nn.Module):
    """Averages its inputs without gradients, and multiplies in another precision."""

    def __init__(self, mean=None):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4) if mean is None else mean)

    def forward(self, x):
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0) * self.linear.bias, alpha=0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x.float() @ self.linear.weight.float()
        return self.linear(y.to(x.dtype) - self.mean + torch.arange(4))


def moving(shared=None):
    blocks = nn.Sequential(*(Moving(shared) for _ in range(3)))
    return blocks, functional.mse_loss, lambda n, seed: (torch.randn(n, 4), torch.zeros(n, 4))


def test_blocks_without_gradients_or_in_another_precision_belong_to_their_layers():
    chain = Chain(moving)
    inputs, targets = chain.batch(3, 0)
    for _ in range(2):
        assert torch.equal(chain.loss(chain.plain(inputs), targets), chain.loss(chain.layers(inputs), targets))
    assert chain.different_buffers() == []
    assert chain.layers[0].get_buffer("0.mean").count_nonzero() == 4


def test_a_buffer_that_two_layers_change_is_refused():
    with pytest.raises(pipesched.ProfileError, match=r"buffer 2\.mean: got changes in place that layers 0 and 1 share"):
        trace_model("moving", *moving(torch.zeros(4)))


@pytest.mark.parametrize("factory", [skipping, moving])
def test_a_layer_computes_on_the_device_of_its_inputs(factory):
    model = trace_model("made up", *factory())
    layers = build_layers(model, 0, len(model.layers), seed=0, device="meta")
    output = layers(mapped(lambda tensor: tensor.to("meta"), model.batch(3, 0)[0]))
    assert {tensor.device.type for tensor in tensors_of(output)} == {"meta"}


def test_a_later_layer_runs_with_other_numbers_of_samples_first():
    """The number of samples of the first trace, 2, is also another size of the inputs."""
    module = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(3)))
    for num_samples in (1, 3, 4):
        model = trace_model("pairs", module, functional.mse_loss, lambda n, seed: (torch.ones(n, 2), torch.ones(n, 2)))
        last = build_layers(model, 2, 3, seed=0)
        x = torch.randn(num_samples, 2)
        assert torch.equal(last(x), module[2](x))


def test_layers_of_a_module_in_mixed_modes():
    module = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(3))).eval()
    module[1].train()
    model = trace_model("mixed", module, functional.mse_loss, None, example=torch.ones(2, 4))
    layers = build_layers(model, 0, 3, seed=0)
    x = torch.randn(2, 4)
    torch.manual_seed(0)
    trained = module(x)
    torch.manual_seed(0)
    assert torch.equal(layers(x), trained)
    assert torch.equal(layers.eval()(x), module.eval()(x))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            if x.sum() > 0:  # the branch
                x = -x
        return x


class Selecting(Branching):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            x = x[x[:, 0] > 0]  # the selection
        return x


def uncopyable():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module.numbers = (number for number in range(3))
    return module


def line_of(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize(
    ("module", "cuts", "message"),
    [
        (Branching(), (), f"{__file__}:{line_of('# the branch')}: got a branch or a shape that depends on values"),
        (Selecting(), (), f"{__file__}:{line_of('# the selection')}: got a branch or a shape that depends on values"),
        (nn.Linear(4, 4), (), "got a module without a place to cut, expected at least two layers; call pipesched.cut"),
        (Marked(), ["frist"], "cuts: got 'frist', expected a name of named_modules(); try first, second"),
        (Marked(), ["first"], "got a module without a place to cut"),
        (
            nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4)),
            (),
            "got parameters of unknown shape, expected a module with",
        ),
        (Marked(), "first", "cuts: got 'first', expected a list of names of named_modules(); try ['first']"),
        (uncopyable(), (), "got TypeError (cannot pickle 'generator' object) in copy.deepcopy of the module, expected"),
        (lambda: 3, (), "got int from its function, expected an nn.Module; return a module"),
        (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4)), (), "got RuntimeError (a and b must have same reduction dim"),
        (nn.Sequential(nn.ModuleDict({"x": nn.Linear(4, 4)})), (), "in forward, expected a result for the example"),
    ],
)
def test_errors_have_one_line(module, cuts, message, capfd):
    with pytest.raises(pipesched.ProfileError) as caught:
        trace_model("faulty", module, functional.mse_loss, None, cuts, example=torch.ones(2, 4))
    assert message in str(caught.value)
    assert str(caught.value).startswith("model faulty: ")
    assert capfd.readouterr() == ("", ""), "torch logs nothing"


class LookingUp(Branching):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(4, 4) for _ in range(2))

    def forward(self, tokens):
        x = self.blocks[0](self.tables[0](tokens))
        return self.blocks[1](x) + self.tables[1](2 * tokens)  # the second table


def test_an_error_in_a_traced_layer_names_the_line_of_the_user():
    def batch(num_samples, seed):
        return torch.arange(num_samples), torch.ones(num_samples, 4)

    model = trace_model("lookup", LookingUp(), functional.mse_loss, batch, cuts=["blocks.1"])
    assert build_layers(model, 0, 2, seed=0)(torch.tensor([0, 1])).shape == (2, 4)
    with pytest.raises(IndexError) as caught:
        build_layers(model, 0, 2, seed=0)(torch.tensor([0, 2]))
    place = Path(__file__).name, line_of("# the second table"), "forward"
    assert users_lines(caught.value)[1:] == [place]
    with pytest.raises(pipesched.ProfileError) as told:
        profile_model(model, ProfilerSettings(microbatch_sizes=(3,), repeats=1, warmup=1))
    assert f"(index out of range in self) at {place[0]}:{place[1]} in forward, expected a result" in str(told.value)


def test_a_branch_inside_torch_is_named():
    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8), 2)

        def forward(self, x):
            return self.decoder(x, x, tgt_mask=nn.Transformer.generate_square_subsequent_mask(2))

    with pytest.raises(pipesched.ProfileError, match=r"\(in _detect_is_causal_mask of torch\.nn\), expected a forward"):
        trace_model("faulty", Causal(), functional.mse_loss, None, example=torch.ones(2, 2, 4))


def test_a_cut_that_does_not_run_is_refused():
    module, loss, batch = skipping()
    with pytest.raises(pipesched.ProfileError, match="cuts: got 'unused', which does not run in forward"):
        trace_model("skipping", module, loss, batch, ["unused"])


def test_samples_of_another_length_are_refused_inside_the_module():
    model = trace_model("lstm", *lstm())
    layers = build_layers(model, 0, len(model.layers), seed=0)
    assert layers[1](torch.ones(3, 5, 8)).shape == (3, 5, 8)  # positions follow from the shape
    with pytest.raises(
        pipesched.ProfileError, match=r"layer lower\.1: got tensors of the shapes \[\(3, 5\)\], expected"
    ):
        layers[2](torch.ones(3, 5))


def test_a_batch_of_another_structure_is_refused():
    model = trace_model(
        "lstm", lstm()[0], functional.mse_loss, lambda n, s: ({"input_ids": torch.ones(n, 2).long()}, n)
    )
    with pytest.raises(pipesched.ProfileError, match=r"batch\(3, 0\): got targets of another structure"):
        model.batch(3, 0)
