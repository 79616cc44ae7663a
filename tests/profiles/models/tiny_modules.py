"""Modules of others in small configurations, each with its loss and batches: (module, loss, batch)."""

import os

import pytest
import torch
from torch import nn
from torch.nn import functional

VOCAB, LENGTH, IMAGE, CLASSES = 61, 9, 32, 5


def _transformers():
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    return transformers


def token_loss(outputs, targets):
    return functional.cross_entropy(outputs["logits"].flatten(0, 1), targets.flatten())


def image_loss(outputs, targets):
    return functional.cross_entropy(outputs["logits"], targets)


def _tokens(generator, num_samples):
    return torch.randint(VOCAB, (num_samples, LENGTH), generator=generator)


def token_batch(num_samples, seed):
    generator = torch.Generator().manual_seed(seed)
    return {"input_ids": _tokens(generator, num_samples)}, _tokens(generator, num_samples)


def padded_batch(num_samples, seed):
    inputs, targets = token_batch(num_samples, seed)
    lengths = torch.randint(2, LENGTH, (num_samples, 1), generator=torch.Generator().manual_seed(seed))
    return inputs | {"attention_mask": (torch.arange(LENGTH) < lengths).long()}, targets


def pair_batch(num_samples, seed):
    inputs, targets = padded_batch(num_samples, seed)
    return inputs | {"decoder_input_ids": targets.flip(1)}, targets


def image_batch(num_samples, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num_samples, 3, IMAGE, IMAGE, generator=generator)
    return {"pixel_values": images}, torch.randint(CLASSES, (num_samples,), generator=generator)


SIZES = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "use_cache": False}
BLOCKS = {"num_hidden_layers": 3, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}


def gpt2(dropout=0.0):
    hf = _transformers()
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    config = hf.GPT2Config(n_layer=3, n_embd=16, n_head=2, n_positions=16, **SIZES, **drops)
    return hf.GPT2LMHeadModel(config), token_loss, token_batch


def llama():
    hf = _transformers()
    return hf.LlamaForCausalLM(hf.LlamaConfig(num_key_value_heads=1, **BLOCKS, **SIZES)), token_loss, padded_batch


def bert():
    hf = _transformers()
    drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return hf.BertForMaskedLM(hf.BertConfig(**BLOCKS, **SIZES, **drops)), token_loss, padded_batch


def t5():
    hf = _transformers()
    config = hf.T5Config(num_layers=3, d_model=16, d_ff=24, d_kv=8, num_heads=2, dropout_rate=0.0, **SIZES)
    return hf.T5ForConditionalGeneration(config), token_loss, pair_batch


def vit():
    hf = _transformers()
    config = hf.ViTConfig(image_size=IMAGE, patch_size=8, num_labels=CLASSES, **BLOCKS)
    return hf.ViTForImageClassification(config), image_loss, image_batch


def resnet():
    hf = _transformers()
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[2, 3, 1, 1], layer_type="basic", num_labels=CLASSES
    )
    return hf.ResNetForImageClassification(config), image_loss, image_batch


def mixtral():
    hf = _transformers()
    config = hf.MixtralConfig(
        num_key_value_heads=1, num_local_experts=3, experts_implementation="batched_mm", **BLOCKS, **SIZES
    )
    return hf.MixtralForCausalLM(config), token_loss, token_batch


class Lstm(nn.Module):
    """Two lists of one class, and an embedding whose weights the head shares."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 8)
        self.lower = nn.ModuleList(nn.LSTM(8, 8, batch_first=True) for _ in range(3))
        self.upper = nn.ModuleList(nn.LSTM(8, 8, batch_first=True) for _ in range(2))
        self.head = nn.Linear(8, VOCAB)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for layer in (*self.lower, *self.upper):
            x = x + layer(x)[0]
        return {"logits": self.head(x)}


def lstm():
    return Lstm(), token_loss, token_batch


ALL = {factory.__name__: factory for factory in (gpt2, llama, bert, t5, vit, resnet, mixtral, lstm)}
