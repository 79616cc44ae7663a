"""Find a model by a line of text: ``gpt``, ``gpt:layers=4,width=64``, ``my.module:factory:depth=3``."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipesched.profiles import ProfileError
from pipesched.profiles.io import BUILT_IN, require_trusted
from pipesched.profiles.models.conv import conv
from pipesched.profiles.models.digits import digits
from pipesched.profiles.models.gpt import gpt
from pipesched.profiles.models.lstm import lstm
from pipesched.profiles.models.mlp import mlp
from pipesched.profiles.models.model import Model
from pipesched.profiles.models.tied_parameters import shared_parameters
from pipesched.profiles.processes import MODEL_PATH

MODELS: dict[str, Callable[..., Model]] = dict(zip(BUILT_IN, (conv, digits, gpt, lstm, mlp), strict=True))
"""The models that come with pipesched, by name."""

_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _bool(text: str) -> bool:
    """Return what a word says, in any case."""
    if text.lower() not in _BOOLS:
        raise ValueError(text)
    return _BOOLS[text.lower()]


_READERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str, "bool": _bool}
_ANY = ("int", "float", "str")
"""Tried one after the other where nobody says what a value is."""


def resolve_model(text: str) -> Model:
    """Return the model that `text` names.

    A user's factory returns a `Model`, or (layers, loss, batch) with layers a list of modules or of their builders.
    It is called with torch's random state fixed, so that every process gets the same modules. Modules that come
    ready-made keep the weights they have; builders get weights by `build_layers`' seed.

    Args:
        text: ``name[:key=value,...]`` or ``package.module:factory[:key=value,...]``; the working directory is
            importable. Of a name that a file gives (`NameFromFile`) only the former.

    Raises:
        ProfileError: No such model, or not with these arguments, or one that a file would have imported.
    """
    require_trusted(text)
    name, _, rest = text.partition(":")
    if name in MODELS:
        return MODELS[name](**_arguments(text, MODELS[name], rest))
    attribute, _, rest = rest.partition(":")
    if not name or not attribute or "=" in attribute:
        raise ProfileError(
            f"model {text!r}: got an unknown model, expected one of {', '.join(MODELS)} or package.module:factory; "
            "try gpt:layers=8,width=320"
        )
    with _users_folders():
        factory = _load_factory(text, name, attribute)
        arguments = _arguments(text, factory, rest)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                made = factory(**arguments)
        except ProfileError:
            raise
        except Exception as error:  # a user's code may raise anything
            raise _users_fault(text, f"{attribute}() raised", error) from error
    return _as_model(text, made)


@contextmanager
def _users_folders() -> Iterator[None]:
    """Import from the working directory first, as a plain Python would; afterwards what is found nowhere else.

    So what layers import while they run is found, and a user's ``queue.py`` is not taken for the standard library's.
    """
    here = str(Path.cwd())
    elsewhere = filter(None, os.environ.get(MODEL_PATH, "").split(os.pathsep))
    sys.path += [folder for folder in dict.fromkeys(elsewhere) if folder not in sys.path]
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)


def _arguments(text: str, factory: Callable[..., Any], rest: str) -> dict[str, Any]:
    parameters = inspect.signature(factory).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    accepted = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    arguments: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key in arguments:
            raise ProfileError(f"model {text!r}: got {item!r}, expected key=value with each key once; try layers=4")
        if key not in accepted and not takes_all:
            raise ProfileError(
                f"model {text!r}: got an unknown argument {key!r}, expected one of {', '.join(accepted) or 'none'}; "
                "check its spelling"
            )
        arguments[key] = _read_value(text, key, value, parameters.get(key))
    missing = [key for key in accepted if parameters[key].default is inspect.Parameter.empty and key not in arguments]
    if missing:
        raise ProfileError(f"model {text!r}: got no {', '.join(missing)}, expected a value; append :{missing[0]}=...")
    return arguments


def _read_value(text: str, key: str, value: str, parameter: inspect.Parameter | None) -> Any:
    """Read by the parameter's annotation, else by the type of its default, else as the first type that fits."""
    kind = "" if parameter is None else _kind(parameter)
    for name in [kind] if kind in _READERS else _ANY:
        try:
            return _READERS[name](value)
        except ValueError:
            continue
    expected = "true or false" if kind == "bool" else f"a number ({kind})"
    raise ProfileError(f"model {text!r}: {key}: got {value!r}, expected {expected}; correct the value")


def _kind(parameter: inspect.Parameter) -> str:
    """Return the name of the type that is annotated, with or without None; if that cannot be read, of the default."""
    annotation = parameter.annotation
    annotated = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    match = re.fullmatch(r"(?:typing\.)?Optional\[(\w+)\]|(?:None \| )?(\w+)(?: \| None)?", annotated)
    kind = "" if match is None else match[1] or match[2]
    return kind if kind in _READERS else type(parameter.default).__name__


def _load_factory(text: str, module_name: str, attribute: str) -> Callable[..., Any]:
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything
        raise _users_fault(text, f"importing {module_name} raised", error) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ProfileError(
            f"model {text!r}: got no function {attribute!r} in {module_name}, expected one that returns the model; "
            "check its spelling"
        )
    return factory  # type: ignore[no-any-return]  # what a user's function returns is checked by _as_model


def _users_fault(text: str, what: str, error: Exception) -> ProfileError:
    message = " ".join(str(error).split())[:200]
    return ProfileError(
        f"model {text!r}: {what} {type(error).__name__}: {message}; it must work in a plain Python started here"
    )


def _as_model(text: str, made: Any) -> Model:
    if isinstance(made, Model):
        return replace(made, name=text)
    if not (isinstance(made, (tuple, list)) and len(made) == 3 and isinstance(made[0], Iterable)):
        raise ProfileError(
            f"model {text!r}: got {type(made).__name__}, expected a Model or (layers, loss, batch); return one of them"
        )
    layers, loss, batch = list(made[0]), made[1], made[2]
    for index, layer in enumerate(layers):
        if not callable(layer):
            raise ProfileError(
                f"model {text!r}: layer {index}: got {type(layer).__name__}, expected a module "
                "or a function that builds one; wrap it"
            )
    for first, second, name in shared_parameters(
        layer.named_parameters() if isinstance(layer, nn.Module) else () for layer in layers
    ):
        raise ProfileError(
            f"model {text!r}: layers {first} and {second} share {name}, expected every layer to have its own "
            "parameters; untie them, or make one layer of both"
        )
    if not callable(loss) or not callable(batch):
        raise ProfileError(
            f"model {text!r}: got a loss or batch that cannot be called, expected loss(outputs, targets) and "
            "batch(num_samples, seed); return (layers, loss, batch)"
        )
    builders = tuple(partial(copy.deepcopy, layer) if isinstance(layer, nn.Module) else layer for layer in layers)
    names = tuple(
        f"{index} {type(layer).__name__}" if isinstance(layer, nn.Module) else f"layer {index}"
        for index, layer in enumerate(layers)
    )
    return Model(text, builders, names, loss, batch)
