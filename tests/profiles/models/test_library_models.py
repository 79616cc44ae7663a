import importlib.util
import json
import re
import sys

import pytest
import torch
from torch.nn import functional

from pipesched.profiles import ProfileError
from pipesched.profiles.io import NameFromFile
from pipesched.profiles.models import build_layers, draw_batch, draw_held_out, resolve_model, tensors_of, trace_model

TINY = {
    "gpt2": "n_layer=2,n_embd=16,n_head=2,vocab_size=300",
    "bert": "num_hidden_layers=2,hidden_size=16,num_attention_heads=2,intermediate_size=8,vocab_size=300",
    "t5": "num_layers=2,d_model=16,d_kv=8,num_heads=2,d_ff=8,vocab_size=300",
    "vit": "num_hidden_layers=2,hidden_size=16,num_attention_heads=2,intermediate_size=8,image=32",
}
pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")


@pytest.mark.slow
@pytest.mark.parametrize("kind", TINY)
def test_a_type_of_transformers_is_a_model_with_its_samples(kind, capfd):
    name = f"hf:{kind}:{TINY[kind]}" + ("" if kind == "vit" else ",context=12")
    model = resolve_model(name)
    assert (model.name, model.is_resolved) == (name, True)
    layers = build_layers(model, 0, len(model.layers), seed=0)
    inputs, targets = draw_batch(model, 3, 1)
    loss = model.loss(layers(inputs), targets)
    classes = 2 if kind == "vit" else int(TINY[kind].rpartition("=")[2])
    assert abs(loss - torch.tensor(classes).log()) < 0.5 * torch.tensor(classes).log()
    assert all(len(tensor) == 64 for value in draw_held_out(model) for tensor in tensors_of(value))
    assert capfd.readouterr().err == ""


def test_samples_of_a_language_model_are_the_next_bytes():
    inputs, targets = draw_batch(resolve_model(f"hf:gpt2:{TINY['gpt2']},context=12"), 3, 1)
    assert inputs.shape == targets.shape == (3, 12)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_a_masked_language_model_learns_an_equal_number_of_tokens_of_each_sample():
    model = resolve_model(f"hf:bert:{TINY['bert']},context=40")
    inputs, targets = draw_batch(model, 3, 1)
    assert (inputs == 299).sum(1).tolist() == (targets != -100).sum(1).tolist() == [6, 6, 6]
    scores = torch.randn(3, 40, 300, dtype=torch.float64)
    is_learned = targets != -100
    expected = functional.cross_entropy(scores[is_learned], targets[is_learned])
    assert abs(model.loss(scores, targets) - expected) <= 1e-12


@pytest.mark.slow
def test_a_configuration_file_may_name_the_class(tmp_path):
    fields = {"model_type": "bert", "architectures": ["BertLMHeadModel"], "is_decoder": True, "vocab_size": 50}
    fields |= {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "auto_map": {"AutoModel": "x.py"}}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(fields))
    model = resolve_model(f"hf:{file}:context=5,intermediate_size=8")
    inputs, targets = draw_batch(model, 3, 1)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:gtp2", "got model_type 'gtp2', did you mean gpt2? expected a model_type of transformers; try hf:gpt2"),
        ("hf:gpt2:n_layers=3", "got an unknown argument 'n_layers', did you mean n_layer? expected context, image"),
        ("hf:gpt2:n_layer=many", "n_layer"),
        ("hf:gpt2:n_embd=65", "its class: got ValueError"),
        ("hf:gpt2:context=5000", "context: got 5000, expected 1 to 1024"),
        ("hf:llava", "got LlavaConfig, expected a language model or a classifier of images"),
        ("hf:nowhere/config.json", "nowhere/config.json: got No such file"),
        ("hf:", "got an unknown model"),
    ],
)
def test_errors_have_one_line(name, message):
    with pytest.raises(ProfileError, match=re.escape(message)):
        resolve_model(name)


def test_a_name_from_a_file_needs_trust():
    with pytest.raises(ProfileError, match="a file may not choose code to import"):
        resolve_model(NameFromFile("hf:gpt2", "plan.json"))


@pytest.mark.parametrize(("name", "command"), [("hf:gpt2", "'pipesched[hf]'"), ("tv:resnet50", "torchvision")])
def test_a_missing_library_is_told_with_its_command(name, command, monkeypatch):
    for missing in ("transformers.models.auto.configuration_auto", "torchvision", "torchvision.models"):
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ProfileError) as caught:
        resolve_model(name)
    assert f"expected it installed; try pip install {command}" in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")
def test_a_model_of_torchvision_equals_its_own_module():
    from torchvision.models import resnet18

    model = resolve_model("tv:resnet18:image=32,num_classes=7")
    layers = build_layers(model, 0, len(model.layers), seed=0, dtype=torch.float64)
    plain = resnet18(num_classes=7).double()
    plain.load_state_dict({name: tensor for layer in layers for name, tensor in layer.state_dict().items()})
    inputs, targets = draw_batch(model, 3, 1, dtype=torch.float64)
    loss, expected = model.loss(layers(inputs), targets), functional.cross_entropy(plain(inputs), targets)
    loss.backward()
    expected.backward()
    assert loss == expected
    gradients = {name: p.grad for layer in layers for name, p in layer.named_parameters()}
    assert all(torch.equal(gradients[name], p.grad) for name, p in plain.named_parameters())
    assert len(layers) == 10


def test_a_cache_of_keys_and_values_crosses_no_cut():
    """By default configurations of transformers keep a cache."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model("gpt2", vocab_size=16, n_layer=2, n_embd=8, n_head=2)
    tokens = torch.randint(16, (2, 4))

    def sent(uses_cache):
        config.use_cache = uses_cache
        module = transformers.AutoModelForCausalLM.from_config(config).eval()
        example = {"input_ids": tokens}
        model = trace_model("gpt2", module, lambda outputs, targets: outputs.logits.mean(), None, example=example)
        values, value = [], tokens
        for layer in build_layers(model, 0, len(model.layers), seed=0):
            value = layer(value)
            values.append([tensor.shape for tensor in tensors_of(value)])
        assert torch.equal(model.loss(value, None), module(tokens).logits.mean())
        return values

    assert sent(True) == sent(False)
