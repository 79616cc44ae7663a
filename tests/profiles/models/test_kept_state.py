"""Code that runs inside leaves no trace in random generators and modules."""

import copy
import random
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from pipesched.profiles import ProfileError
from pipesched.profiles.models import Model, build_layers, draw_batch, kept_random_state, kept_state, resolve_model
from tests.executor import models


def drawn():
    return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()  # noqa: NPY002


def seeded():
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)


class Restless(nn.Module):
    """Changes all that a module can hold."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("own", torch.zeros(4))
        self.register_buffer("late", None)
        self.register_buffer("wide", torch.zeros(1).expand(4))
        self.again = self.own  # the same tensor by another name
        self.plain, self.count = torch.zeros(4), 0
        self.lists, self.names, self.table, self.queue = [torch.zeros(1)], {1}, {"a": torch.zeros(1)}, deque([0])
        self.generator = torch.Generator().manual_seed(1)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        self.count += 1
        self.new = 1
        self.late = torch.ones(2)
        self.own.add_(1)
        self.plain.add_(1)
        self.weight.data.mul_(2)
        self.lists[0].add_(1)
        self.lists.append(1)
        self.names.add(2)
        self.table["a"].add_(1)
        self.table["b"] = 1
        self.queue.append(1)
        self.train(not self.training)
        return self.dropout(x) + torch.rand(4, generator=self.generator)


def held(module):
    """Return all that a module holds, tensors as lists."""

    def plain(value):
        if isinstance(value, torch.Tensor):
            return value.tolist()
        if isinstance(value, torch.Generator):
            return value.get_state().tolist()
        if isinstance(value, dict):
            return {key: plain(held) for key, held in value.items()}
        return [plain(held) for held in value] if isinstance(value, list | deque) else value

    names = [name for name in vars(module) if not name.startswith("_") or name in ("_buffers", "_parameters")]
    return {name: plain(vars(module)[name]) for name in names}, [part.training for part in module.modules()]


def test_a_module_is_as_before_though_its_forward_changes_everything():
    module = nn.Sequential(nn.BatchNorm1d(4), Restless(), nn.Dropout(0.5).eval()).double().float()
    before = copy.deepcopy([held(part) for part in module.modules()])
    tensors = [*module.parameters(), *module.buffers()]
    seeded()
    expected = drawn()
    seeded()
    with kept_state(module):
        module(torch.ones(3, 4))
        module(torch.ones(3, 4))
    assert drawn() == expected
    assert [held(part) for part in module.modules()] == before
    assert all(a is b for a, b in zip(tensors, [*module.parameters(), *module.buffers()], strict=True))


def test_a_module_is_as_before_though_its_forward_fails():
    module = nn.Sequential(Restless(), nn.Linear(3, 3))
    before = copy.deepcopy([held(part) for part in module.modules()])
    with pytest.raises(RuntimeError), kept_state(module):
        module(torch.ones(3, 4))
    assert [held(part) for part in module.modules()] == before


def test_one_tensor_by_two_names_is_one_tensor_inside():
    module = Restless()
    with kept_state(module):
        assert module.own is module.again
        module(torch.ones(3, 4))
        assert module.again.tolist() == [1.0] * 4
    assert module.again is module.own
    assert module.own.tolist() == [0.0] * 4


def test_random_numbers_continue_as_if_nobody_had_drawn_or_seeded():
    seeded()
    expected = drawn()
    seeded()
    with kept_random_state(7):
        torch.manual_seed(1)
        drawn()
    assert drawn() == expected


@pytest.mark.parametrize("call", ["layers", "batch", "lookup"])
def test_what_a_user_seeds_in_a_model_does_not_change_the_callers_random_numbers(call, tmp_path):
    def seeding(num_samples, seed):
        torch.manual_seed(seed)
        np.random.seed(0)  # noqa: NPY002
        return torch.randn(num_samples, 4), torch.randn(num_samples, 4)

    quiet = models.plain(2)
    model = Model("seeding", quiet.layers, quiet.layer_names, quiet.loss, seeding)
    (tmp_path / "seeds_itself.py").write_text(
        "import torch\ntorch.manual_seed(9)\ndef make():\n    from tests.executor import models\n"
        "    torch.manual_seed(8)\n    return models.plain(2)\n"
    )
    calls = {
        "layers": lambda: build_layers(model, 0, 2, seed=1),
        "batch": lambda: draw_batch(model, 2, 5),
        "lookup": lambda: resolve_model(f"{tmp_path}/seeds_itself.py:make"),
    }
    seeded()
    expected = drawn()
    seeded()
    calls[call]()
    assert drawn() == expected


def test_a_batch_drawn_from_the_generators_of_the_process_depends_on_its_seed_alone():
    quiet = models.plain(2)
    model = Model(
        "careless", quiet.layers, quiet.layer_names, quiet.loss, lambda n, seed: (torch.rand(n, 4), torch.rand(n, 4))
    )
    first, again, other = (draw_batch(model, 2, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_layer_whose_weights_its_first_input_would_draw_is_refused():
    quiet = models.plain(2)
    model = Model("late", (quiet.layers[0], lambda: nn.LazyLinear(4)), ("a", "b"), quiet.loss, quiet.batch)
    with pytest.raises(ProfileError, match="model late: layer 1: got LazyLinear with parameters of unknown shape"):
        build_layers(model, 0, 2, seed=0)
