"""A whole module as a `Model`: traced, cut into layers, and built where its layers live."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pipesched.profiles import ProfileError
from pipesched.profiles.models.model import Model, Tie, users_code
from pipesched.profiles.models.module_sources import ModuleFactory
from pipesched.profiles.models.structures import Structure, flattened
from pipesched.profiles.models.ties import shared_parameters
from pipesched.profiles.models.traced_module import TracedLayer, Tracer
from pipesched.profiles.models.values import Value, tensors_of

_NUM_TRACED = 2
"""Samples of the first trace; a batch of one sample is special to some modules, such as batch normalisation."""


def trace_model(
    name: str,
    module: nn.Module | Callable[[], nn.Module],
    loss: Callable[[Any, Any], Tensor],
    batch: Callable[[int, int], tuple[Any, Any]] | None,
    cuts: Sequence[str] = (),
    example: Any = None,
) -> Model:
    """Return any module as a model.

    Layers of a ready-made module have its own parameters, not copies. The boundary between two layers carries every
    tensor that later layers need.

    Args:
        name: Name of the model, for messages.
        module: The module, or a function that builds it.
        loss: (output of the module, targets) -> the mean over the micro-batch, a scalar.
        batch: (number of samples, seed) -> (inputs, targets). Inputs are a tensor, a tuple of positional arguments or a
            dictionary of keyword arguments; None for a model that is only fed by hand.
        cuts: Names of submodules to cut before; none for `CutRule`.
        example: Inputs of one micro-batch for the first trace (default: of `batch`).

    Raises:
        ProfileError: The module cannot be traced or cut, or has parameters without a shape.
    """
    if example is None and batch is None:
        raise ProfileError(f"model {name}: got neither batch nor example, expected one of them for the trace; pass one")
    if isinstance(module, nn.Module):
        return model_of(name, module, lambda _names, _seed: module, loss, batch, cuts, example)
    source = ModuleFactory(module, lambda made: made)
    return model_of(name, source.outline, source.module, loss, batch, cuts, example)


def model_of(
    name: str,
    outline: nn.Module,
    module_with: Callable[[Collection[str], int], nn.Module],
    loss: Callable[[Any, Any], Tensor],
    batch: Callable[[int, int], tuple[Any, Any]] | None,
    cuts: Sequence[str] = (),
    example: Any = None,
) -> Model:
    """Return a module as a model; other arguments and errors as in `trace_model`.

    Args:
        outline: The module; its parameters may have no memory.
        module_with: (names, seed) -> the module with at least the parameters `names` in memory, as drawn for `seed`.
    """
    if not isinstance(outline, nn.Module):
        raise ProfileError(
            f"model {name}: got {type(outline).__name__} from its function, expected an nn.Module; return a module"
        )
    if any(map(is_lazy, outline.parameters())):
        raise ProfileError(
            f"model {name}: got parameters of unknown shape, expected a module with weights; give its number of "
            "inputs, or run it once where it is built"
        )
    targets = None
    if batch is not None:
        with users_code(f"model {name}: batch({_NUM_TRACED}, 0)"):
            drawn = batch(_NUM_TRACED, 0)
            example, targets = drawn[0] if example is None else example, flattened(drawn[1])[1]
    try:
        tensors, inputs = flattened(example)
        tracer = Tracer(outline, inputs, tensors_of(tensors), cuts)
    except ProfileError as error:
        raise ProfileError(f"model {name}: {error}") from None

    def build_range(first: int, last: int, seed: int) -> list[nn.Module]:
        names = {name for layer in tracer.states[first:last] for name in layer}
        module = module_with(names, seed)
        return [TracedLayer(tracer, layer, module) for layer in range(first, last)]

    return Model(
        name,
        tuple(partial(_alone, build_range, layer) for layer in range(len(tracer.names))),
        tracer.names,
        partial(_loss, loss, tracer, targets),
        partial(_batch, batch, name, inputs, targets),
        build_range=build_range,
        ties=_ties(tracer, outline),
        state_names=_state_names(tracer, outline),
        kinds=tracer.kinds,
    )


def _alone(build_range: Callable[[int, int, int], Sequence[nn.Module]], index: int) -> nn.Module:
    return build_range(index, index + 1, 0)[0]


def _loss(
    loss: Callable[[Any, Any], Tensor], tracer: Tracer, structure: Structure | None, output: Value, targets: Any
) -> Tensor:
    return loss(tracer.restored_output(output), targets if structure is None else structure.restored(targets))


def _batch(
    batch: Callable[[int, int], tuple[Any, Any]] | None,
    name: str,
    inputs: Structure,
    targets: Structure | None,
    num_samples: int,
    seed: int,
) -> tuple[Value, Value]:
    if batch is None:
        raise ProfileError(f"model {name}: got no batch, expected a function of (samples, seed); give one")
    drawn = [flattened(part) for part in batch(num_samples, seed)]
    for (_, structure), expected, what in zip(drawn, (inputs, targets), ("inputs", "targets"), strict=True):
        if expected is not None and structure != expected:
            raise ProfileError(
                f"model {name}: batch({num_samples}, {seed}): got {what} of another structure than the first batch, "
                "expected the same keys and constants; correct it"
            )
    return drawn[0][0], drawn[1][0]


def _ties(tracer: Tracer, module: nn.Module) -> tuple[Tie, ...]:
    """Return the places of the parameters that several layers use and learn."""
    learned = {name: p for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    return shared_parameters([(name, learned[name]) for name in names if name in learned] for names in tracer.states)


def _state_names(tracer: Tracer, module: nn.Module) -> dict[str, str]:
    """Return the names in the state dict of the module, each with the name of the same tensor in the layers."""
    used = {name for names in tracer.states for name in names}
    tensors: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    tensors |= dict(module.named_buffers(remove_duplicate=False))
    own = {id(tensors[name]): name for name in used}
    names = (name for name in module.state_dict() if name in tensors)
    return {name: name if name in used else own[id(tensors[name])] for name in names if id(tensors[name]) in own}
