"""Modules of others in one's own loop: GPT-2 with tied weights, skip connections, dictionaries, buffers."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import pipesched
from tests.executor.pipelines import assert_equal


class Branching(nn.Module):
    """Blocks with batch normalisation, a skip connection from the input, and an integer mask."""

    def __init__(self, width=6):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Tanh()) for _ in range(4)
        )
        self.head = nn.Linear(width, 3)

    def forward(self, x, mask):
        hidden = x
        for block in self.blocks:
            hidden = block(hidden) * mask + x
        return {"scores": self.head(hidden), "mask": mask}


def cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs["scores"], targets["labels"])


def branching_batch(num_samples):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(num_samples, 6, dtype=torch.float64, generator=generator)
    mask = torch.randint(0, 2, (num_samples, 6), generator=generator)
    return {"x": x, "mask": mask}, {"labels": torch.randint(0, 3, (num_samples,), generator=generator)}


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.2)


def pipeline(module, batch, **given):
    """Return a pipeline of two ranks and four micro-batches, with a part of the batch as example."""
    example = {key: tensor[: len(tensor) // 4] if torch.is_tensor(tensor) else tensor for key, tensor in batch.items()}
    usual = {"schedule": "1f1b", "num_ranks": 2, "microbatches": 4, "loss": cross_entropy, "optimizer": sgd}
    return pipesched.Pipeline(module, **(usual | {"example": example} | given))


def halves(data, count):
    """Return a batch of dictionaries in equal parts."""
    return [dict(zip(data, parts, strict=True)) for parts in zip(*(t.chunk(count) for t in data.values()), strict=True)]


def plain_steps(module, inputs, targets, loss, steps, count=4):
    """Train with plain PyTorch, micro-batch by micro-batch; return the losses."""
    optimizer, losses = sgd(module.parameters()), []
    for _ in range(steps):
        parts = [loss(module(**x), y) for x, y in zip(halves(inputs, count), halves(targets, count), strict=True)]
        mean = torch.stack(parts).mean()
        mean.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean.item())
    return losses


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "interleaved", "chimera"])
def test_a_module_with_a_skip_a_mask_and_buffers(name):
    torch.manual_seed(0)
    module = Branching().double()
    untouched = copy.deepcopy(module.state_dict())
    inputs, targets = branching_batch(16)
    with pipeline(module, inputs, schedule=name) as pipe:
        losses = [pipe.step(inputs, targets).item() for _ in range(3)]
        outputs, loss, state = pipe.evaluate(inputs), pipe.evaluate(inputs, targets), pipe.state_dict()
    assert_equal(module.state_dict().values(), untouched.values(), 0)
    whole = copy.deepcopy(module)
    assert losses == pytest.approx(plain_steps(whole, inputs, targets, cross_entropy, 3), rel=1e-12)
    assert list(state) == list(whole.state_dict())
    if name == "chimera":  # replicas have running means of their own
        return
    assert_equal([state[key].double() for key in state], [t.double() for t in whole.state_dict().values()])
    module.load_state_dict(state)
    expected = module.eval()(**inputs)
    assert_equal([outputs["scores"]], [expected["scores"].detach()])
    assert torch.equal(outputs["mask"], inputs["mask"])
    parts = zip(halves(inputs, 4), halves(targets, 4), strict=True)
    mean = torch.stack([cross_entropy(module(**x), y) for x, y in parts]).mean()
    assert loss.item() == pytest.approx(mean.item(), rel=1e-12)


def test_autocast_is_that_of_pytorch():
    torch.manual_seed(0)
    module, (inputs, targets) = Branching(), branching_batch(16)
    inputs["x"] = inputs["x"].float()

    def cast_loss(outputs, labels):
        assert outputs["scores"].dtype is torch.bfloat16
        return cross_entropy(outputs, labels)

    with pipeline(module, inputs, schedule="gpipe", loss=cast_loss, autocast=torch.bfloat16) as pipe:
        losses = [pipe.step(inputs, targets).item() for _ in range(2)]
        assert {tensor.dtype for tensor in pipe.state_dict().values()} == {torch.float32, torch.int64}

    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = copy.deepcopy(module)

        def forward(self, **given):
            with torch.autocast("cpu", torch.bfloat16):
                return self.module(**given)

    def loss_under_autocast(outputs, labels):
        with torch.autocast("cpu", torch.bfloat16):
            return cast_loss(outputs, labels)

    assert losses == pytest.approx(plain_steps(Cast(), inputs, targets, loss_under_autocast, 2), rel=1e-3)


def models_of_transformers(transformers):
    """Yield name, configuration, class and batch of small models."""
    tokens = torch.randint(3, 50, (8, 12), generator=torch.Generator().manual_seed(2))
    images = torch.randn(8, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    mask, labels = torch.ones_like(tokens), torch.arange(8) % 2
    mask[::2, 9:] = 0
    blocks = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    decoder = blocks | {"num_key_value_heads": 1, "vocab_size": 50, "use_cache": False}
    encoder = blocks | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    text = {"input_ids": tokens, "attention_mask": mask}
    t = transformers
    gpt2 = t.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=12, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, use_cache=False)  # fmt: skip
    yield "gpt2", t.GPT2LMHeadModel, gpt2, {"input_ids": tokens, "labels": tokens}
    yield "llama", t.LlamaForCausalLM, t.LlamaConfig(**decoder), text | {"labels": tokens}
    yield "bert", t.BertForSequenceClassification, t.BertConfig(**encoder, vocab_size=50), text | {"labels": labels}
    t5 = t.T5Config(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, vocab_size=50, dropout_rate=0.0,
                    use_cache=False, decoder_start_token_id=0)  # fmt: skip
    yield "t5", t.T5ForConditionalGeneration, t5, text | {"labels": tokens}
    vit = t.ViTConfig(**encoder, image_size=32, patch_size=8)
    yield "vit", t.ViTForImageClassification, vit, {"pixel_values": images, "labels": labels}
    mixtral = t.MixtralConfig(**decoder, num_local_experts=4, experts_implementation="batched_mm")
    yield "mixtral", t.MixtralForCausalLM, mixtral, {"input_ids": tokens, "labels": tokens}
    resnet = t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic")
    yield "resnet", t.ResNetForImageClassification, resnet, {"pixel_values": images, "labels": labels}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5", "vit", "mixtral", "resnet"])
def test_models_of_transformers_train_as_in_a_plain_loop(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    made, config, batch = next(model[1:] for model in models_of_transformers(transformers) if model[0] == name)
    torch.manual_seed(0)
    module = made(config).double().train()
    with pipeline(module, batch, loss=None, clip_grad_norm=0.5) as pipe:
        losses = [pipe.step(batch).item() for _ in range(2)]
        state, outputs = pipe.state_dict(), pipe.evaluate(batch)
        assert f"{made.__name__}: 1f1b, 2 ranks, 4 micro-batches" in str(pipe)
    whole = copy.deepcopy(module)
    optimizer, expected = sgd(whole.parameters()), []
    for _ in range(2):
        loss = torch.stack([whole(**part).loss for part in halves(batch, 4)]).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(whole.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-6), "some losses are in float32"
    trained, tolerance = whole.state_dict(), 1e-12 if name == "gpt2" else 1e-9
    assert list(state) == list(trained)
    assert_equal([state[key].double() for key in state], [tensor.double() for tensor in trained.values()], tolerance)
    torch.testing.assert_close(outputs.logits, whole.eval()(**batch).logits.detach(), rtol=0, atol=tolerance)


def test_a_prediction_measures_the_layers_here():
    module, (inputs, targets) = Branching().double(), branching_batch(16)
    with pipeline(lambda: module, inputs) as pipe:
        with pytest.raises(pipesched.ArgumentError, match="profile: got no step before, expected one"):
            pipe.predict()
        pipe.step(inputs, targets, record=True)
        pipe.evaluate(inputs)  # its targets are none of the profile's
        predicted, again = pipe.predict(), pipe.predict(pipe.profile().profile)
        assert predicted.schedule == pipe.schedule
        assert 0 < predicted.makespan_s < 10 * again.makespan_s
        assert sum(predicted.layers) == len(pipe.profile().profile.layers)
        pipesched.gantt(predicted)
        pipesched.gantt(pipe.timeline())


@pytest.mark.parametrize(
    ("module", "given", "message"),
    [
        (3, {}, "module: got 3, expected an nn.Module, a function that makes one, or a Model"),
        (Branching().double(), {"cuts": ["nothing"]}, "cuts: got 'nothing', expected a name of named_modules"),
        (Branching().double(), {"autocast": torch.float16}, "autocast: got torch.float16, expected torch.bfloat16"),
        (Branching().double(), {"partition": "1,1"}, "partition: got '1,1'"),
        (Branching().double(), {"partition": [1, 1]}, "partition: got '1,1'"),
        (Branching().double(), {"cuts": "head"}, "cuts: got 'head', expected a list of names; try .'head'."),
        (Branching().to("meta"), {}, "module: got weights on the meta device, expected values; pass a function"),
    ],
)
def test_bad_modules_are_refused_in_one_line(module, given, message):
    inputs, _ = branching_batch(16)
    with pytest.raises(ValueError, match=message) as error:
        pipeline(module, inputs, **given)
    assert "\n" not in str(error.value)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x, scale=2.0):
        return self.layers(x) * scale


def test_inputs_of_one_tensor_have_the_keys_and_constants_of_the_example():
    x = torch.randn(8, 4)
    with pipeline(Scaled(), {"x": x, "scale": 3.0}, loss=functional.mse_loss) as pipe:
        for wrong in ({"x": x, "scale": 4.0}, {"y": x, "scale": 3.0}, {"x": x}, (x, 4.0)):
            with pytest.raises(pipesched.ArgumentError, match=r"inputs: got .*other .* than in the example"):
                pipe.step(wrong, x)
        with pytest.raises(pipesched.ArgumentError, match="inputs: got a numpy array in a batch, expected tensors"):
            pipe.step(x.numpy(), x)
        assert torch.equal(pipe.evaluate({"x": x, "scale": 3.0}), pipe.evaluate([x]))


def test_inputs_may_be_the_lists_of_a_data_loader():
    data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.full((8, 4), 2.0))
    (batch,) = torch.utils.data.DataLoader(data, batch_size=8)
    with pipeline(Scaled(), {}, loss=functional.mse_loss, example=data[:2]) as pipe:
        assert torch.equal(pipe.evaluate(batch), pipe.evaluate(tuple(batch)))


def test_other_keys_than_in_the_example_are_refused():
    inputs, targets = branching_batch(16)
    longer, shorter = {"mask": inputs["mask"], "x": inputs["x"], "other": None}, {"x": inputs["x"]}
    with pipeline(Branching().double(), inputs) as pipe:
        for batch, message in (
            ((longer, targets), r"got other keys than in the example \(mask, x, other\), exp"),
            ((shorter, targets), r"got other keys than in the example \(x\), expected x, mask"),
            ((inputs,), "targets: got none, expected targets for the loss"),
        ):
            with pytest.raises(pipesched.ArgumentError, match=message):
                pipe.step(*batch)
        loss = pipe.evaluate(inputs, targets)
        assert pipe.evaluate(dict(reversed(inputs.items())), targets) == loss, "the order of keys does not matter"
        pipe.step(inputs, targets)
