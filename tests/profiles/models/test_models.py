import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from pipesched.profiles import ProfileError
from pipesched.profiles.models import Model, build_layers, draw_batch, resolve_model

SMALL = [
    "mlp:width=8,layers=3",
    "gpt:layers=2,width=16,heads=4,context=8",
    "conv:channels=8,blocks=4,image=8,classes=5",
    "digits:width=8,blocks=2",
    "lstm:layers=2,width=8,context=6",
    "lenet5:image=16",
    "alexnet:width=4,linear=16,image=16,dropout=0.0",
    "vgg16:width=2,linear=16,dropout=0.0,batch_norm=false",
]
NORMED = ["resnet:depth=8,width=4,image=8", "vgg16:width=2,linear=16,dropout=0.0"]
"""Models with BatchNorm: their loss depends on the other samples of the micro-batch."""


ALEXNET = sum(9 * a * b + b for a, b in pairwise((3, 64, 192, 384, 256, 256)))
ALEXNET += (256 * 4 + 1) * 4096 + (4096 + 1) * 4096 + (4096 + 1) * 10
"""Parameters of five convolutions and three linear maps."""


def weights(module):
    return [parameter.detach().clone() for parameter in module.parameters()]


@pytest.mark.parametrize("text", SMALL + NORMED)
def test_a_slice_has_the_weights_of_the_whole_model(text):
    model = resolve_model(text)
    num_layers = len(model.layers)
    whole = build_layers(model, 0, num_layers, seed=3)
    torch.manual_seed(99)  # whatever happened before
    state = torch.get_rng_state()
    for first in range(num_layers):
        part = build_layers(model, first, num_layers, seed=3)
        expected = [w for layer in list(whole)[first:] for w in weights(layer)]
        assert all(torch.equal(a, b) for a, b in zip(weights(part), expected, strict=True))
    assert torch.equal(torch.get_rng_state(), state), "the caller's random numbers stay as they are"


def test_seeds_and_layers_differ():
    model = resolve_model("mlp:width=8,layers=3")
    layers = [build_layers(model, i, i + 1, seed=seed) for seed, i in ((0, 0), (0, 1), (1, 0))]
    firsts = [weights(layer)[0] for layer in layers]
    assert not torch.equal(firsts[0], firsts[1])
    assert not torch.equal(firsts[0], firsts[2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "dtype"), [*((text, torch.float64) for text in SMALL + NORMED), (SMALL[1], torch.bfloat16)]
)
def test_a_model_learns_its_batch(text, dtype):
    model = resolve_model(text)
    chain = build_layers(model, 0, len(model.layers), seed=0, dtype=dtype)
    inputs, targets = draw_batch(model, 4, 0, dtype=dtype)
    optimizer = torch.optim.Adam(chain.parameters(), 0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model.loss(chain(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("text", SMALL)
def test_the_loss_of_a_batch_is_the_mean_over_its_microbatches(text):
    model = resolve_model(text)
    chain = build_layers(model, 0, len(model.layers), seed=0, dtype=torch.float64)
    inputs, targets = draw_batch(model, 6, 0, dtype=torch.float64)
    whole = model.loss(chain(inputs), targets).item()
    parts = [model.loss(chain(x), t).item() for x, t in zip(inputs.split(2), targets.split(2), strict=True)]
    assert sum(parts) / 3 == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("text", SMALL)
def test_a_batch_depends_on_its_seed_alone(text):
    model = resolve_model(text)
    first, again, other = model.batch(3, 1), model.batch(3, 1), model.batch(3, 2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert first[0].shape[0] == first[1].shape[0] == 3


def test_an_untrained_gpt_knows_nothing_and_does_not_see_the_future():
    model = resolve_model("gpt:layers=2,width=16,heads=4,context=8")
    chain = build_layers(model, 0, len(model.layers), seed=0, dtype=torch.float64)
    inputs, targets = model.batch(4, 0)
    assert model.loss(chain(inputs), targets).item() == pytest.approx(math.log(256), rel=0.02)
    changed = inputs.clone()
    changed[:, 5:] = 65
    assert torch.allclose(chain(inputs)[:, :5], chain(changed)[:, :5], atol=1e-12)


def test_an_lstm_remembers_and_does_not_see_the_future():
    model = resolve_model("lstm:layers=2,width=16,context=8")
    chain = build_layers(model, 0, len(model.layers), seed=0, dtype=torch.float64)
    inputs, _ = model.batch(2, 0)
    changed = inputs.clone()
    changed[:, 4] = 65
    before, after = chain(inputs), chain(changed)
    assert torch.allclose(before[:, :4], after[:, :4], atol=1e-12)
    assert (before[:, 7] - after[:, 7]).abs().min() > 1e-9


@pytest.mark.parametrize(
    ("text", "published"),
    [
        ("lenet5", 61_706),  # 156 + 2,416 + 48,120 + 10,164 + 850
        ("vgg16:image=224,classes=1000,batch_norm=false", 138_357_544),  # torchvision's vgg16
        ("resnet:depth=20", 269_722),  # He et al., 2016, Table 6: 0.27 M, 0.85 M, 1.7 M
        ("resnet:depth=56", 853_018),
        ("resnet:depth=110", 1_727_962),
        ("gpt", 8 * (12 * 320**2 + 13 * 320) + (256 + 128) * 320 + 2 * 320 + 256 * 320),  # blocks, embeddings, head
        ("lstm:layers=3,width=16", 256 * 16 + 3 * (8 * 16**2 + 8 * 16) + 16 * 256 + 256),  # eight matrices a layer
        ("alexnet", ALEXNET),
    ],
)
def test_networks_have_the_published_or_counted_parameters(text, published):
    model = resolve_model(text)
    with torch.device("meta"):
        chain = nn.Sequential(*(layer() for layer in model.layers))
    assert sum(w.numel() for w in chain.parameters()) == published


def test_a_residual_block_halves_the_picture_and_keeps_every_second_pixel():
    (block,) = build_layers(resolve_model("resnet:depth=8,width=4"), 2, 3, seed=0)
    x = torch.rand(2, 4, 8, 8)
    nn.init.zeros_(block.norm2.weight)  # leaves the shortcut
    result = block(x)
    assert torch.equal(result[:, 2:6], x[:, :, ::2, ::2])
    assert not result[:, :2].any()
    assert not result[:, 6:].any()


@pytest.mark.parametrize("name", ["gpt", "lstm"])
def test_the_targets_of_a_language_model_are_the_next_bytes_of_english(name):
    inputs, targets = resolve_model(f"{name}:context=64").batch(2, 0)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    many, _ = resolve_model(f"{name}:context=64").batch(100, 0)
    text = bytes(many.flatten().tolist()).decode(errors="replace")
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert " the " in text


def test_dropout_draws_and_is_off_in_evaluation():
    model = resolve_model("gpt:layers=1,width=16,heads=2,context=8,dropout=0.5")
    chain = build_layers(model, 0, len(model.layers), seed=0)
    inputs, _ = model.batch(2, 0)
    assert not torch.equal(chain(inputs), chain(inputs))
    chain.eval()
    assert torch.equal(chain(inputs), chain(inputs))


def test_layers_outside_the_model_are_refused():
    model = resolve_model("mlp:layers=3")
    for first, last in ((0, 4), (2, 2), (-1, 1)):
        with pytest.raises(ProfileError, match="expected a non-empty range within 0 to 3"):
            build_layers(model, first, last, seed=0)


def test_a_model_needs_layers_and_a_name_for_each():
    loss, batch = nn.functional.mse_loss, resolve_model("mlp").batch
    with pytest.raises(ProfileError, match="no layers"):
        Model("m", (), (), loss, batch)
    with pytest.raises(ProfileError, match="2 layer names for 1 layers"):
        Model("m", (nn.Identity,), ("a", "b"), loss, batch)


def test_a_builder_or_a_batch_that_fails_is_told_in_one_line():
    model = Model("m", (lambda: {}["a\nb"],), ("a",), nn.functional.mse_loss, lambda n, seed: 3)
    with pytest.raises(ProfileError, match=r"layer 0: its builder: got KeyError"):
        build_layers(model, 0, 1, seed=0)
    with pytest.raises(ProfileError, match=r"batch\(2, 0\): got TypeError"):
        draw_batch(model, 2, 0)


def test_a_builder_that_builds_no_module_is_refused():
    model = Model("m", (lambda: 3,), ("a",), nn.functional.mse_loss, resolve_model("mlp").batch)
    with pytest.raises(ProfileError, match=r"layer 0: got int, expected a torch\.nn\.Module"):
        build_layers(model, 0, 1, seed=0)
