"""Run a model layer by layer, cut by detach at every boundary, as stages run it; and the whole module beside it."""

import copy

import torch

from pipesched.profiles.models import build_layers, mapped, tensors_of, trace_model


def in_double(batch):
    """Return the batch with float64 in place of float32."""

    def drawn(num_samples, seed):
        def cast(tree):
            if isinstance(tree, dict):
                return {key: cast(item) for key, item in tree.items()}
            if isinstance(tree, tuple):
                return tuple(map(cast, tree))
            return tree.double() if isinstance(tree, torch.Tensor) and tree.is_floating_point() else tree

        return tuple(map(cast, batch(num_samples, seed)))

    return drawn


def called(module, inputs):
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


class Chain:
    """A module and its layers, both in float64 with the same weights."""

    def __init__(self, factory, cuts=(), example_size=None):
        torch.manual_seed(0)
        module, self.loss, batch = factory()
        self.batch = in_double(batch)
        self.plain = copy.deepcopy(module.double())
        example = None if example_size is None else self.batch(example_size, 0)[0]
        self.model = trace_model(factory.__name__, module, self.loss, self.batch, cuts, example)
        self.layers = build_layers(self.model, 0, len(self.model.layers), seed=0)

    def run_plain(self, num_samples, seed):
        """Return the loss; gradients are left on the parameters."""
        inputs, targets = self.batch(num_samples, seed)
        loss = self.loss(called(self.plain, inputs), targets)
        loss.backward()
        return loss.detach()

    def run_layers(self, num_samples, seed):
        """Return the loss and the values at the boundaries; gradients are left on the parameters of the layers."""
        value, targets = self.model.batch(num_samples, seed)
        pairs = []
        for index, layer in enumerate(self.layers):
            value = mapped(lambda t, index=index: t.detach().requires_grad_(index > 0 and t.is_floating_point()), value)
            pairs.append((value, layer(value)))
            value = pairs[-1][1]
        loss = self.model.loss(value, targets)
        loss.backward()
        for (entered, _), (_, left) in zip(pairs[:0:-1], pairs[-2::-1], strict=True):
            grads = [tensor.grad for tensor in tensors_of(entered)]
            learned = [
                (t, g) for t, g in zip(tensors_of(left), grads, strict=True) if t.requires_grad and g is not None
            ]
            torch.autograd.backward(*map(list, zip(*learned, strict=True)))
        return loss.detach(), [value for value, _ in pairs]

    def worst_gradient(self):
        """Return the largest difference of a gradient; copies of a shared parameter are one object here."""
        plain = dict(self.plain.named_parameters(remove_duplicate=False))
        worst = 0.0
        for layer in self.layers:
            for name, parameter in layer.named_parameters():
                assert (parameter.grad is None) == (plain[name].grad is None), name
                if parameter.grad is not None:
                    worst = max(worst, (parameter.grad - plain[name].grad).abs().max().item())
        return worst

    def different_buffers(self):
        plain = dict(self.plain.named_buffers())
        return [
            name
            for layer in self.layers
            for name, buffer in layer.named_buffers()
            if not torch.equal(buffer, plain[name])
        ]
