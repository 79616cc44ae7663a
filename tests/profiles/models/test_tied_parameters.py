import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipesched.profiles import ProfileError
from pipesched.profiles.models import Model, resolve_model
from pipesched.profiles.models.model import require_untied, shared_parameters


class Reversed(nn.Module):
    """Scores with the weights of an embedding."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def forward(self, x):
        return x @ self.embedding.weight.T


def tied():
    embedding = nn.Embedding(5, 4)
    return [embedding, nn.Linear(4, 4), Reversed(embedding)], functional.mse_loss, lambda n, seed: None


def tied_by_builders():
    layers, loss, batch = tied()
    return [lambda: layers[0], lambda: nn.Linear(4, 4), lambda: layers[2]], loss, batch


def model(*builders):
    return Model("made up", builders, tuple(map(str, range(len(builders)))), functional.mse_loss, lambda n, seed: None)


SINGLE = [(0, 1), (1, 2), (2, 3)]


def test_finished_layers_that_share_a_parameter_are_refused_for_each_would_be_copied():
    with pytest.raises(ProfileError, match=r"layers 0 and 2 share embedding\.weight, expected every layer to have its"):
        resolve_model("tests.profiles.models.test_tied_parameters:tied")


def test_builders_that_hand_out_a_shared_parameter_are_refused_across_stages():
    tied_model = resolve_model("tests.profiles.models.test_tied_parameters:tied_by_builders")
    with pytest.raises(ProfileError) as raised:
        require_untied(tied_model, SINGLE)
    assert "layer 0 on stage 0 and layer 2 on stage 2 share embedding.weight" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_stage_may_hold_both():
    require_untied(resolve_model("tests.profiles.models.test_tied_parameters:tied_by_builders"), [(0, 3)])


def test_a_class_that_is_given_a_shared_module_is_looked_at():
    shared = nn.Embedding(5, 4)
    with pytest.raises(ProfileError, match=r"share embedding\.weight"):
        require_untied(model(partial(Reversed, shared), nn.Identity, partial(Reversed, embedding=shared)), SINGLE)


@pytest.mark.parametrize("text", ["gpt:layers=2,width=8,heads=2", "conv", "mlp"])
def test_layers_made_by_their_classes_are_not_built_to_look_at_them(text, monkeypatch):
    built_model = resolve_model(text)
    monkeypatch.setattr(nn.Module, "__init__", None)
    require_untied(built_model, [(i, i + 1) for i in range(len(built_model.layers))])


def test_equal_parameters_are_not_shared_ones_and_addresses_used_again_do_not_confuse():
    require_untied(model(*(lambda: nn.Linear(64, 64) for _ in range(50))), [(i, i + 1) for i in range(50)])


def test_looking_keeps_nothing_alive_and_draws_nothing():
    alive = []

    def build():
        layer = nn.Linear(3, 3)
        alive.append(weakref.ref(layer))
        return layer

    before = torch.get_rng_state()
    require_untied(model(build, build, build), SINGLE)
    gc.collect()
    assert not any(layer() for layer in alive)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_builder_that_fails_is_named():
    def build():
        raise KeyError("no")

    with pytest.raises(ProfileError, match="layer 1: its builder: got KeyError"):
        require_untied(model(nn.Identity, build, nn.Identity), SINGLE)


def test_all_pairs_are_found():
    linear = nn.Linear(2, 2, bias=False)
    named = [list(linear.named_parameters())] * 3
    assert list(shared_parameters(named)) == [(0, 1, "weight"), (0, 2, "weight")]
