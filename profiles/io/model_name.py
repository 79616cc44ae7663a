"""The name and the arguments of a model, ``gpt:layers=4,width=64``; a name from a file is not imported."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from pipesched.profiles import ProfileError
from pipesched.schedules.common import guess, shown

BUILT_IN = ("alexnet", "conv", "digits", "gpt", "lenet5", "lstm", "mlp", "resnet", "vgg16")
"""The models that come with pipesched."""
TRUST_ADVICE = "try trusted(name) of pipesched.profiles.io if you trust the file"


_GRAPH, _LAYERS = "graph ", "layers "
"""Prefixes of the file name, in the name of a model with known costs and unknown layers."""


def graph_model(file: str) -> str:
    """Return the model name for a graph of PipeDream's profiler."""
    return f"{_GRAPH}{file}"


def costs_model(origin: str) -> str:
    """Return the model name for costs of layers; `origin` is their file, or a few words."""
    return f"{_LAYERS}{origin}"


def costs_file_of(model: str) -> str | None:
    """Return the name of the file with the costs of `model`, or None for a model that can be built."""
    prefix = next((prefix for prefix in (_GRAPH, _LAYERS) if model.startswith(prefix)), None)
    return None if prefix is None else Path(model.removeprefix(prefix)).name


@final
class NameFromFile(str):
    """The name of a model from a file: equal to the same name typed by a user, but not to be imported.

    The readers of profiles, plans and jobs return it, so that the origin of a name is always known. `resolve_model` and
    the functions that start processes refuse it unless it is built in, or `trusted`.

    Attributes:
        file: The file that contains the name.
    """

    __slots__ = ("file",)

    file: str

    def __new__(cls, name: str, file: str) -> NameFromFile:
        """Return `name` with its file."""
        made = super().__new__(cls, name)
        made.file = file
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # str's own is of one argument
        return str(self), self.file


def trusted(name: str) -> str:
    """Return `name` as if the user had typed it; use it only after asking the user."""
    return str(name)


def is_built_in(name: str) -> bool:
    """Return whether the model is part of pipesched; its arguments do not matter."""
    return name.partition(":")[0] in BUILT_IN


def imports_of(name: str) -> str | None:
    """Return the file of a name that would cause an import; None for built-in names and names typed by the user."""
    return name.file if isinstance(name, NameFromFile) and not is_built_in(name) else None


def require_trusted(name: str) -> None:
    """Refuse a name from a file that would cause an import.

    Raises:
        ProfileError: The name would cause an import.
    """
    file = imports_of(name)
    if file is not None:
        raise ProfileError(
            f"{file}: model: got {shown(str(name))}, expected one of {', '.join(BUILT_IN)}, because a file may not "
            f"choose code to import; {TRUST_ADVICE}"
        )


_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _bool(text: str) -> bool:
    """Return the truth value of a word such as ``yes`` or ``False``, in upper or lower case."""
    if text.lower() not in _BOOLS:
        raise ValueError(text)
    return _BOOLS[text.lower()]


_ALSO_CALLED = {
    "hidden": "width",
    "hidden_size": "width",
    "num_heads": "heads",
    "num_layers": "layers",
    "seq": "context",
    "seq_length": "context",
    "vocab_size": "vocab",
}
"""Names of arguments in other projects, and their names here."""

_READERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str, "bool": _bool}
_ANY = ("int", "float", "str")
"""Types tried in order for a value without a known type."""


def read_arguments(text: str, factory: Callable[..., Any], rest: str) -> dict[str, Any]:
    """Return the arguments of a factory by name.

    Args:
        text: The whole name of the model, for messages.
        factory: The function or class that takes the arguments.
        rest: The part of the name with the arguments: ``key=value,key=value``, or empty.

    Raises:
        ProfileError: An argument is unknown, missing, repeated, or has the wrong type.
    """
    parameters = inspect.signature(factory).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    accepted = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    arguments: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key in arguments or _ALSO_CALLED.get(key) in arguments:
            raise ProfileError(f"model {text!r}: got {item!r}, expected key=value with each key once; try layers=4")
        if key not in accepted and _ALSO_CALLED.get(key) in accepted:
            key = _ALSO_CALLED[key]
        if key not in accepted and not takes_all:
            raise ProfileError(
                f"model {text!r}: got an unknown argument {key!r}, {guess(key, accepted)}expected one of "
                f"{', '.join(accepted) or 'none'}; check its spelling"
            )
        arguments[key] = _read_value(text, key, value, parameters.get(key))
    missing = [key for key in accepted if parameters[key].default is inspect.Parameter.empty and key not in arguments]
    if missing:
        raise ProfileError(f"model {text!r}: got no {', '.join(missing)}, expected a value; append :{missing[0]}=...")
    return arguments


def _read_value(text: str, key: str, value: str, parameter: inspect.Parameter | None) -> Any:
    """Return `value` in the type of the annotation, else of the default, else in the first type of `_ANY` that fits."""
    kind = "" if parameter is None else _kind(parameter)
    for name in [kind] if kind in _READERS else _ANY:
        try:
            return _READERS[name](value)
        except ValueError:
            continue
    expected = "true or false" if kind == "bool" else f"a number ({kind})"
    raise ProfileError(f"model {text!r}: {key}: got {value!r}, expected {expected}; correct the value")


def _kind(parameter: inspect.Parameter) -> str:
    """Return the name of the annotated type, without None, or of the default's type if that type is not supported."""
    annotation = parameter.annotation
    annotated = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    match = re.fullmatch(r"(?:typing\.)?Optional\[(\w+)\]|(?:None \| )?(\w+)(?: \| None)?", annotated)
    kind = "" if match is None else match[1] or match[2]
    return kind if kind in _READERS else type(parameter.default).__name__
