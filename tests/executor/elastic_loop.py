"""Elastic averaging as a plain loop on the whole model, in float64."""

import torch

from pipesched.profiles.models import build_layers, resolve_model

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.05),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.05),
}


def by_hand(text, pipelines, data, optimizer, averaging, rate=lambda step: 1.0):
    """Yield (weights of every model, weights of the reference, mean loss) of each iteration, weights as vectors.

    `data` yields, per iteration, (inputs, targets) of each pipeline; `rate` is a factor on the learning rate.
    """
    model, a = resolve_model(text), 1 / pipelines
    models = [build_layers(model, 0, len(model.layers), seed=0, dtype=torch.float64) for _ in range(pipelines)]
    optimizers = [OPTIMIZERS[optimizer](module.parameters()) for module in models]
    schedulers = [torch.optim.lr_scheduler.LambdaLR(its_optimizer, rate) for its_optimizer in optimizers]
    reference = vector(models[0].parameters())
    for batches in data:
        olds, updates, losses = [vector(module.parameters()) for module in models], [], []
        for (x, y), module, its_optimizer, old in zip(batches, models, optimizers, olds, strict=True):
            its_optimizer.zero_grad()
            losses.append(model.loss(module(x), y))
            losses[-1].backward()
            its_optimizer.step()
            updates.append(vector(module.parameters()) - old)
        for scheduler in schedulers:
            scheduler.step()
        newer = reference + sum(updates) / pipelines
        for module, x, u in zip(models, olds, updates, strict=True):
            new = (1 - a) * (x + u) + a * newer if averaging == "synchronous" else (1 - a) * x + a * reference + u
            torch.nn.utils.vector_to_parameters(new, module.parameters())
        reference = newer
        yield [vector(module.parameters()) for module in models], reference, sum(losses).item() / pipelines


def vector(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).clone()
