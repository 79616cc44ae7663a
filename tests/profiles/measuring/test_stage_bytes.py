"""Bytes of stages as sums over their layers, against PyTorch's hooks on each stage run as one piece."""

import weakref

import pytest
import torch
from torch.distributed.pipelining._backward import stage_backward_input

from pipesched.profiles.measuring import ProfilerSettings, profile_model
from pipesched.profiles.models import build_layers, draw_batch, resolve_model, trace_model
from pipesched.profiles.partitioning import parse_partition
from tests.profiles.measuring.test_profiler import CONV, GPT, MLP, strange_model
from tests.profiles.measuring.test_several_tensors import several
from tests.profiles.models import tiny_modules

SIZE = 2


def storages(tensors):
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def cut(y):
    """Give what another process gets: every tensor with a storage of its own."""
    several = y if isinstance(y, tuple) else (y,)
    copies = tuple(None if t is None else t.detach().clone().requires_grad_(t.requires_grad) for t in several)
    return copies if isinstance(y, tuple) else copies[0]


def parts(value):
    return [t for t in (value if isinstance(value, tuple) else (value,)) if t is not None]


def whole_stages(model, bounds, dtype):
    """Yield (bytes that F keeps, bytes that I keeps, bytes sent) of every stage, each run as one piece."""
    x, targets = draw_batch(model, SIZE, 0, dtype=dtype)
    for first, last in bounds:
        stage = build_layers(model, first, last, seed=0, dtype=dtype)
        own, boxes = storages([*stage.parameters(), *stage.buffers()]), []

        class Box:
            pass

        def pack(tensor, boxes=boxes, kind=Box):
            box = kind()
            box.tensor = tensor.detach()
            boxes.append(weakref.ref(box))
            return box

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
            y = stage(x)
            if last == len(model.layers):
                y = model.loss(y, targets)

        def kept_bytes(*others, boxes=boxes, own=own):
            held = storages([*others, *(box().tensor for box in boxes if box() is not None)])
            return sum(num_bytes for key, num_bytes in held.items() if key not in own)

        after_forward, following, after_input = kept_bytes(*parts(x)), cut(y), None
        xs = [t for t in parts(x) if t.requires_grad]
        if xs:
            ys = [t.clone() for t in parts(y) if t.requires_grad]
            del y
            _, groups = stage_backward_input(ys, [torch.ones_like(t) for t in ys], xs, stage.parameters())
            del ys
            arrived = [g for group in groups for of_op in group["grads"] for g in of_op if g is not None]
            after_input = kept_bytes(*parts(x), *arrived) if groups else 0
        yield after_forward, after_input, sum(t.nbytes for t in parts(following))
        x = following


def traced(name):
    module, loss, batch = tiny_modules.ALL[name]()
    return trace_model(name, module, loss, batch)


CASES = {
    "mlp": (lambda: resolve_model(MLP), "float64", range(1, 5)),
    "gpt": (lambda: resolve_model(GPT), "float32", range(1, 5)),
    "gpt with dropout": (lambda: resolve_model(f"{GPT},dropout=0.1"), "bfloat16", range(1, 5)),
    "conv": (lambda: resolve_model(CONV), "float32", range(1, 7)),
    "strange": (strange_model, "float32", range(1, 6)),  # of more stages the second has no gradient of its input
    "several": (several, "float32", range(1, 9)),
    **{name: (lambda name=name: traced(name), "float32", (1, 2, 4)) for name in ("gpt2", "llama", "resnet", "lstm")},
}
"""Model, number type, and numbers of stages."""


@pytest.mark.parametrize("name", CASES)
def test_summed_layers_keep_what_hooks_see_on_the_whole_stage(name):
    make, dtype, stage_counts = CASES[name]
    model = make()
    profile = profile_model(model, ProfilerSettings(microbatch_sizes=[SIZE], repeats=1, warmup=1, dtype=dtype))
    for num_stages in stage_counts:
        bounds = parse_partition("uniform", [1.0] * len(model.layers), num_stages)
        costs = profile.costs_of_layers(bounds, SIZE).stages
        forward, after_input, sent = zip(*whole_stages(model, bounds, getattr(torch, dtype)), strict=True)
        assert [cost.saved_bytes for cost in costs] == [*forward]
        assert [cost.saved_for_weight_bytes for cost in costs[1:]] == [*after_input[1:]]
        assert [cost.output_bytes for cost in costs[:-1]] == [*sent[:-1]]
        # the W of the first stage is its whole backward, which waits with the gradient of its output
        first = costs[0]
        assert first.saved_for_weight_bytes == first.saved_bytes + first.said("output_gradient_bytes")
        assert (first.backward_input_s, first.backward_weight_s) == (0.0, first.backward_s)
