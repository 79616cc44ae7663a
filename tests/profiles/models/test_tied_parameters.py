import gc
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipesched.profiles import ProfileError
from pipesched.profiles.models import (
    Model,
    build_layers,
    require_known_ties,
    resolve_model,
    shared_parameters,
    tied_stages,
)


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


def test_finished_layers_that_share_a_parameter_are_tied():
    made = resolve_model("tests.profiles.models.test_tied_parameters:tied")
    assert made.ties == (((0, "weight"), (2, "embedding.weight")),)
    assert [tied_stages(made, bounds) for bounds in (SINGLE, [(0, 2), (2, 3)], [(0, 3)])] == [(0, 2), (0, 1), ()]
    require_known_ties(made, SINGLE)


def test_layers_of_a_range_share_and_other_ranges_have_equal_copies():
    made = resolve_model("tests.profiles.models.test_tied_parameters:tied")
    whole, (head,) = build_layers(made, 0, 3, seed=1, dtype=torch.float64), build_layers(made, 2, 3, seed=1)
    assert whole[0].weight is whole[2].embedding.weight
    assert head.embedding.weight is not whole[0].weight
    assert torch.equal(head.embedding.weight.double(), whole[0].weight)


def mixed():
    layers, loss, batch = tied()
    return [layers[0], lambda: nn.Linear(4, 4), layers[2]], loss, batch


def test_builders_beside_tied_modules_draw_from_the_seed_of_their_layer():
    made = resolve_model("tests.profiles.models.test_tied_parameters:mixed")
    alone, whole, other = (
        build_layers(made, *bounds, seed=seed) for bounds, seed in (((1, 2), 5), ((0, 3), 5), ((1, 2), 6))
    )
    assert torch.equal(alone[0].weight, whole[1].weight)
    assert not torch.equal(alone[0].weight, other[0].weight)


def test_ties_need_a_builder_of_several_layers():
    with pytest.raises(ProfileError, match="made up: got ties without build_range, expected a function that builds"):
        replace(model(nn.Identity, nn.Identity), ties=(((0, "weight"), (1, "weight")),))


def test_builders_that_hand_out_a_shared_parameter_are_refused_across_stages():
    tied_model = resolve_model("tests.profiles.models.test_tied_parameters:tied_by_builders")
    with pytest.raises(ProfileError, match="layer 0 on stage 0 and layer 2 on stage 2 share embedding"):
        require_known_ties(tied_model, SINGLE)


def test_a_stage_may_hold_both():
    require_known_ties(resolve_model("tests.profiles.models.test_tied_parameters:tied_by_builders"), [(0, 3)])


def test_a_class_that_is_given_a_shared_module_is_looked_at():
    shared = nn.Embedding(5, 4)
    with pytest.raises(ProfileError, match=r"share embedding\.weight"):
        require_known_ties(model(partial(Reversed, shared), nn.Identity, partial(Reversed, embedding=shared)), SINGLE)


@pytest.mark.parametrize("text", ["gpt:layers=2,width=8,heads=2", "conv", "mlp"])
def test_layers_made_by_their_classes_are_not_built_to_look_at_them(text, monkeypatch):
    built_model = resolve_model(text)
    monkeypatch.setattr(nn.Module, "__init__", None)
    require_known_ties(built_model, [(i, i + 1) for i in range(len(built_model.layers))])


def test_equal_parameters_are_not_shared_ones_and_addresses_used_again_do_not_confuse():
    require_known_ties(model(*(lambda: nn.Linear(64, 64) for _ in range(50))), [(i, i + 1) for i in range(50)])


def test_looking_keeps_nothing_alive_and_draws_nothing():
    alive = []

    def build():
        layer = nn.Linear(3, 3)
        alive.append(weakref.ref(layer))
        return layer

    before = torch.get_rng_state()
    require_known_ties(model(build, build, build), SINGLE)
    gc.collect()
    assert not any(layer() for layer in alive)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_builder_that_fails_is_named():
    def build():
        raise KeyError("no")

    with pytest.raises(ProfileError, match="layer 1: its builder: got KeyError"):
        require_known_ties(model(nn.Identity, build, nn.Identity), SINGLE)


def test_all_pairs_are_found():
    linear = nn.Linear(2, 2, bias=False)
    named = [list(linear.named_parameters())] * 3
    assert list(shared_parameters(named)) == [((0, "weight"), (1, "weight"), (2, "weight"))]
