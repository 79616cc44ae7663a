"""The arguments after a model's name, as in ``gpt:layers=4,width=64``, typed by the signature of its factory."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from pipesched.profiles import ProfileError
from pipesched.schedules.common import guess

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
"""Names of other projects for arguments of ours."""

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
    """Return the name of the annotated type, without None; if it is not supported, the type of the default."""
    annotation = parameter.annotation
    annotated = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    match = re.fullmatch(r"(?:typing\.)?Optional\[(\w+)\]|(?:None \| )?(\w+)(?: \| None)?", annotated)
    kind = "" if match is None else match[1] or match[2]
    return kind if kind in _READERS else type(parameter.default).__name__
