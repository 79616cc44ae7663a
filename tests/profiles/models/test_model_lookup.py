import re
import sys

import pytest
import torch

from pipesched.profiles import ProfileError
from pipesched.profiles.models import build_layers, resolve_model

USERS = """
import torch
from torch import nn

def loss(y, t): return ((y - t) ** 2).mean()
def batch(n, seed): return torch.ones(n, 4), torch.zeros(n, 4)

def modules(depth=2): return [nn.Linear(4, 4) for _ in range(depth)], loss, batch
def builders(depth: int, scale: float = 1.0): return [lambda: nn.Linear(4, 4)] * depth, loss, batch
def model(): return __import__("pipesched.profiles.models.mlp").profiles.models.mlp.mlp(width=4, layers=2)
def anything(**arguments): return arguments["result"], loss, batch
def flags(flag: bool, default=True, optional: "bool | None" = None, plain=None):
    num_true = [flag, default, optional, plain].count(True) - (plain == 1)
    return [nn.Linear(1, 1) for _ in range(4 + num_true)], loss, batch
def broken(): raise KeyError("lost")
def nothing(): return None
def no_loss(): return [nn.Identity()], 3, batch
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
net = nn.Sequential(nn.Linear(4, 4))
def whole(): return net
class Blocks(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))
    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x
def blocks(depth=3): return Blocks(depth), loss, batch
made_before = Blocks(3)
def ready(): return made_before, loss, batch
kept = []
def keeper():
    kept.append(kept[0] if kept else Blocks(3))
    return kept[0], loss, batch
def no_layer(): return [3], loss, batch
number = 3
"""


@pytest.fixture
def users(tmp_path, monkeypatch):
    (tmp_path / "users_models.py").write_text(USERS)
    (tmp_path / "users_faulty.py").write_text("import not_there_at_all")
    (tmp_path / "users_wrong.py").write_text("def (")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("users_models", "users_faulty", "users_wrong"):
        sys.modules.pop(name, None)


def test_a_short_name_and_a_long_one_are_the_same_model():
    assert resolve_model("gpt").name == resolve_model("gpt:layers=8, width=320").name
    assert resolve_model(resolve_model("conv:blocks=2").name).name == resolve_model("conv:blocks=2").name


def test_arguments_may_be_called_as_other_projects_call_them():
    model = resolve_model("gpt:layers=2,width=16,heads=2,context=8,vocab=256")
    renamed = resolve_model("gpt:num_layers=2,hidden_size=16,num_heads=2,seq=8,vocab_size=256")
    built = [build_layers(named, 0, len(named.layers), seed=0) for named in (model, renamed)]
    shapes = [[value.shape for layer in layers for value in layer.parameters()] for layers in built]
    assert shapes[0] == shapes[1]
    with pytest.raises(ProfileError, match="each key once"):
        resolve_model("gpt:width=16,hidden=16")


@pytest.mark.usefixtures("users")
def test_a_file_is_as_good_as_its_module(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    model = resolve_model("../users_models.py:builders:depth=3")
    assert (model.name, len(model.layers)) == ("../users_models.py:builders:depth=3", 3)
    with pytest.raises(ProfileError, match=r"got no file users_models.py, expected path.py:factory; check the path"):
        resolve_model("users_models.py:builders")


@pytest.mark.usefixtures("users")
def test_ready_made_modules_are_the_same_in_every_call_and_each_build_is_a_copy():
    first = resolve_model("users_models:modules:depth=3")
    torch.manual_seed(7)
    second = resolve_model("users_models:modules:depth=3")
    assert first.name == "users_models:modules:depth=3"
    assert len(first.layers) == 3
    a, b, c = (build_layers(m, 0, 3, seed=1) for m in (first, second, first))
    assert torch.equal(a[1].weight, b[1].weight)
    assert a[1].weight.data_ptr() != c[1].weight.data_ptr()


@pytest.mark.usefixtures("users")
def test_builders_get_their_weights_from_the_seed():
    model = resolve_model("users_models:builders:depth=2,scale=2")
    a, b, c = (build_layers(model, 0, 2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(a[0].weight, b[0].weight)
    assert not torch.equal(a[0].weight, c[0].weight)
    assert not torch.equal(a[0].weight, a[1].weight)


@pytest.mark.usefixtures("users")
def test_a_factory_may_return_a_model_which_takes_the_name_it_was_called_by():
    assert resolve_model("users_models:model").name == "users_models:model"


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize(
    ("arguments", "num_true"),
    [
        ("flag=True", 2),
        ("flag=False,default=False", 0),
        ("flag=no,default=YES,optional=false", 1),
        ("flag=1,default=true,optional=yes", 3),
        ("flag=0,default=0,optional=1", 1),
        ("flag=NO,default=no,plain=1", 0),  # of no type that is said: a number
    ],
)
def test_a_flag_is_true_or_false_as_its_word_says(arguments, num_true):
    assert len(resolve_model(f"users_models:flags:{arguments}").layers) == 4 + num_true


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpz", "lenet5, lstm, mlp, resnet, vgg16, hf:TYPE, tv:NAME, package.module:factory or path.py"),
        ("", "unknown model"),
        ("llama3-70c", "or pipesched.analytic_profile('llama3-70b', 'h100'), as it can only be estimated"),
        ("gpt:depth=2", "unknown argument 'depth', expected one of layers, width, heads"),
        ("gpt:layers", "expected key=value"),
        ("gpt:layers=2,layers=3", "each key once"),
        ("gpt:layers=two", "layers: got 'two', expected a number (int)"),
        ("gpt:layers=0", "layers: got 0, expected 1 to 10000"),
        ("mlp:layers=100000000", "layers: got 100000000, expected 1 to 10000"),
        ("digits:blocks=1000000000", "blocks: got 1000000000, expected 0 to 10000"),
        ("gpt:width=100,heads=3", "expected a multiple of heads=3; try width=102"),
        ("gpt:vocab=100", "vocab: got 100, expected 256 to"),
        ("gpt:context=1000000", "context: got 1000000, expected 1 to 16384"),
        ("gpt:dropout=1", "expected 0 <= dropout < 1"),
        ("conv:channels=6", "multiple of 4"),
        ("lstm:layers=0", "layers: got 0"),
        ("lstm:dropout=1", "expected 0 <= dropout < 1"),
        ("lenet5:image=8", "image: got 8, expected 16 to 512"),
        ("resnet:depth=21", "depth: got 21, expected 6n + 2"),
        ("conv:image=2", "halve it 3 times"),
        ("mlp:width=0", "width: got 0"),
        ("not_there_at_all:f", "importing not_there_at_all raised ModuleNotFoundError"),
        ("users_faulty:f", "No module named 'not_there_at_all'"),
        ("users_wrong:f", "SyntaxError"),
        ("users_models:f", "no function 'f' in users_models"),
        ("users_models:broken", "broken() raised KeyError: 'lost'"),
        ("users_models:Net", "got Net, a bare nn.Module, expected a function that returns (module, loss, batch)"),
        ("users_models:net", "got net, a bare nn.Module, expected a function"),
        ("users_models:whole", "got Sequential, a bare nn.Module, expected a function"),
        ("users_models:nothing", "got NoneType, expected a Model, (module, loss, batch) or (layers, loss, batch)"),
        ("users_models:no_loss", "a loss or batch that cannot be called"),
        ("users_models:no_layer", "layer 0: got int"),
        ("users_models:builders", "got no depth"),
        ("users_models:builders:depth=2,width=3", "expected one of depth, scale"),
        ("users_models:anything:result=3", "got tuple"),
        ("users_models:flags:flag=maybe", "flag: got 'maybe', expected true or false"),
        ("users_models:flags:flag=1,default=2", "default: got '2', expected true or false"),
    ],
)
def test_what_is_no_model_is_told_in_one_line(text, message):
    with pytest.raises(ProfileError, match=re.escape(message)):
        resolve_model(text)


@pytest.mark.usefixtures("users")
def test_a_factory_may_return_a_whole_module():
    model = resolve_model("users_models:blocks:depth=4")
    assert (model.name, model.is_resolved) == ("users_models:blocks:depth=4", True)
    assert model.layer_names == ("blocks.0", "blocks.1", "blocks.2", "blocks.3")
    layers = build_layers(model, 0, 4, seed=0)
    x = torch.randn(2, 4)
    plain = sys.modules["users_models"].Blocks(4)
    plain.load_state_dict({name: p for layer in layers for name, p in layer.named_parameters()})
    assert torch.equal(layers(x), plain(x))


@pytest.mark.usefixtures("users")
def test_a_module_that_its_file_makes_is_copied():
    model = resolve_model("users_models:ready")
    first, second = (build_layers(model, 0, 3, seed=0) for _ in range(2))
    assert all(torch.equal(a, b) and a is not b for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert torch.equal(first[0].get_parameter("blocks.0.bias"), sys.modules["users_models"].made_before.blocks[0].bias)


@pytest.mark.usefixtures("users")
def test_a_factory_that_keeps_its_module_is_refused():
    model = resolve_model("users_models:keeper")
    with pytest.raises(ProfileError, match="got a factory that reuses its module or builds it on the meta device"):
        build_layers(model, 0, 3, seed=0)
