"""Find a model by its name: ``gpt:layers=4,width=64``, ``hf:gpt2``, ``my.module:factory:depth=3``, ``my.py:net``."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy  # noqa: F401 -- before torch, whose C code would load it and lose an interrupt
from torch import nn

from pipesched.profiles import ProfileError
from pipesched.profiles.io import BUILT_IN, preset_names, read_arguments, require_trusted
from pipesched.profiles.models.conv import conv
from pipesched.profiles.models.digits import digits
from pipesched.profiles.models.image_networks import alexnet, lenet5, resnet, vgg16
from pipesched.profiles.models.kept_state import kept_random_state
from pipesched.profiles.models.language_models import gpt, lstm
from pipesched.profiles.models.library_models import hugging_face, torchvision
from pipesched.profiles.models.mlp import mlp
from pipesched.profiles.models.model import Model, layer_seed
from pipesched.profiles.models.module_sources import ModuleFactory
from pipesched.profiles.models.ties import shared_parameters
from pipesched.profiles.models.whole_module import model_of
from pipesched.profiles.processes import users_folders, users_module
from pipesched.schedules.common import error_text, shown

MODELS: dict[str, Callable[..., Model]] = dict(
    zip(BUILT_IN, (alexnet, conv, digits, gpt, lenet5, lstm, mlp, resnet, vgg16), strict=True)
)
"""The models that come with pipesched, by name."""
LIBRARIES: dict[str, Callable[..., Model]] = {"hf": hugging_face, "tv": torchvision}
"""The models of installed libraries, by prefix."""


def resolve_model(text: str) -> Model:
    """Return the model with the name `text`.

    A user's factory returns a `Model`, (module, loss, batch), or (layers, loss, batch), where layers is a list of
    modules or of builders. The factory runs with a fixed random state, so that every process gets the same modules.
    Modules in the list keep their weights; builders, and a factory of a whole module, draw theirs from the seed of
    `build_layers`.

    Args:
        text: ``name[:key=value,...]``, ``hf:TYPE[:...]``, ``hf:path/config.json[:...]``, ``tv:NAME[:...]``,
            ``package.module:factory[:key=value,...]`` or ``path.py:factory[:...]``; the working directory is
            importable. A name from a file (`NameFromFile`) may only have the first form.

    Raises:
        ProfileError: The model or an argument is unknown or invalid, or a name from a file would cause an import.
    """
    if not isinstance(text, str):
        raise ProfileError(f"model: got {shown(text)}, expected the name of a model; try gpt:layers=8,width=320")
    require_trusted(text)
    name, _, rest = text.partition(":")
    if name in MODELS:
        model = MODELS[name](**read_arguments(text, MODELS[name], rest))
        return model.resolved(model.name)
    attribute, _, rest = rest.partition(":")
    if not name or not attribute or "=" in attribute:
        presets = get_close_matches(name, preset_names(), n=1, cutoff=0.7)
        advice = ", or pipesched.analytic_profile('{}', 'h100'), as it can only be estimated"
        estimates = map(advice.format, presets)
        raise ProfileError(
            f"model {text!r}: got an unknown model, expected one of {', '.join(MODELS)}, hf:TYPE, tv:NAME, "
            f"package.module:factory or path.py:factory; try gpt:layers=8,width=320{''.join(estimates)}"
        )
    if name in LIBRARIES:
        library = LIBRARIES[name]
        return library(attribute, **read_arguments(text, library, rest)).resolved(text)
    path = Path(name)
    if path.suffix == ".py" and not path.is_file():
        raise ProfileError(f"model {text!r}: got no file {name}, expected path.py:factory; check the path")
    with users_folders(*([Path(os.path.realpath(path)).parent] if path.suffix == ".py" else [])):
        with kept_random_state():
            factory = _load_factory(text, name, attribute)
        arguments = read_arguments(text, factory, rest)
        try:
            made = _made(text, partial(factory, **arguments))
        except ProfileError:
            raise
        except Exception as error:  # a user's code may raise anything
            raise _users_fault(text, f"{attribute}() raised", error) from error
    return (made if isinstance(made, Model) else _as_model(text, made)).resolved(text)


def _made(text: str, factory: Callable[[], Any]) -> Any:
    """Return the result of a factory; a whole module becomes a model without memory for its weights."""
    source = ModuleFactory(factory, itemgetter(0))
    made = source.result
    if isinstance(made, (tuple, list)) and len(made) == 3 and _is_whole(made[0]):
        _require_functions(text, *made[1:])
        return model_of(text, source.outline, source.module, *made[1:])
    if source.has_memory:
        return made
    with kept_random_state(0):
        return factory()


def _is_whole(made: Any) -> bool:
    """Return whether a module is one whole, not a list of layers."""
    return isinstance(made, nn.Module) and not isinstance(made, (nn.Sequential, nn.ModuleList))


def _load_factory(text: str, module_name: str, attribute: str) -> Callable[..., Any]:
    try:
        module = users_module(module_name)
    except Exception as error:  # a user's module may raise anything
        raise _users_fault(text, f"importing {module_name} raised", error) from error
    factory = getattr(module, attribute, None)
    if isinstance(factory, nn.Module) or (isinstance(factory, type) and issubclass(factory, nn.Module)):
        raise _bare_module(text, f"{attribute}, a bare nn.Module")
    if not callable(factory):
        raise ProfileError(
            f"model {text!r}: got no function {attribute!r} in {module_name}, expected a function that returns the "
            "model; check the spelling"
        )
    return factory


def _bare_module(text: str, got: str) -> ProfileError:
    """Return the error for a module without a loss and data."""
    return ProfileError(
        f"model {text!r}: got {got}, expected a function that returns (module, loss, batch); write def factory(): "
        "return Net(), loss, batch with loss(outputs, targets) and batch(num_samples, seed), and name that function"
    )


def _users_fault(text: str, what: str, error: Exception) -> ProfileError:
    message = error_text(error)
    return ProfileError(
        f"model {text!r}: {what} {type(error).__name__}: {message}; the import must work in a plain Python process "
        "started in this folder"
    )


def _as_model(text: str, made: Any) -> Model:
    if isinstance(made, Model):
        return made
    if isinstance(made, nn.Module):
        raise _bare_module(text, f"{type(made).__name__}, a bare nn.Module")
    if not (isinstance(made, (tuple, list)) and len(made) == 3 and isinstance(made[0], Iterable)):
        raise ProfileError(
            f"model {text!r}: got {type(made).__name__}, expected a Model, (module, loss, batch) or (layers, loss, "
            "batch); return one of them"
        )
    layers, loss, batch = list(made[0]), made[1], made[2]
    _require_functions(text, loss, batch)
    builders = tuple(partial(copy.deepcopy, layer) if isinstance(layer, nn.Module) else layer for layer in layers)
    names = tuple(
        f"{index} {type(layer).__name__}" if isinstance(layer, nn.Module) else f"layer {index}"
        for index, layer in enumerate(layers)
    )
    ties = shared_parameters(layer.named_parameters() if isinstance(layer, nn.Module) else () for layer in layers)
    build_range = partial(_built_together, builders) if ties else None
    return Model(text, builders, names, loss, batch, build_range=build_range, ties=ties)


def _require_functions(text: str, loss: Any, batch: Any) -> None:
    if not callable(loss) or not callable(batch):
        raise ProfileError(
            f"model {text!r}: got a loss or batch that cannot be called, expected loss(outputs, targets) and "
            "batch(num_samples, seed); return them behind the module or the layers"
        )


def _built_together(
    builders: Sequence[Callable[[], nn.Module]], first: int, last: int, seed: int
) -> Sequence[nn.Module]:
    """Return layers `first` to `last` - 1; copies of finished modules share parameters as the modules do."""
    built, copies = [], dict[int, Any]()
    for index, builder in enumerate(builders[first:last], first):
        with kept_random_state(layer_seed(seed, index)):
            if isinstance(builder, partial) and builder.func is copy.deepcopy:
                built.append(copy.deepcopy(builder.args[0], copies))
            else:
                built.append(builder())
    return built
