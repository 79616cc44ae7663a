"""Functions whose arguments are the fields of a dataclass, their question."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from pipesched.schedules.common import declared

Arguments = ParamSpec("Arguments")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

_WIDTH = 100
"""Characters of a line of the documentation."""
_PAGES = {"setup": "Setup", "schedule": "build"}
"""The function or class that makes an argument, by the name of the argument."""


def asks(question: Callable[Arguments, Asked]) -> Callable[[Callable[[Asked], Answer]], Callable[Arguments, Answer]]:
    """Return a decorator that gives a function the fields of its question, a dataclass, as arguments.

    A type checker follows each call, and the documentation lists each setting.
    """
    assert isinstance(question, type), "a question is a dataclass"
    signature = plain_signature(question)

    def decorate(answer: Callable[[Asked], Answer]) -> Callable[Arguments, Answer]:
        @wraps(answer)
        def ask(*args: Arguments.args, **keywords: Arguments.kwargs) -> Answer:
            try:
                signature.bind(*args, **keywords)
            except TypeError as error:
                expected = f"expected {answer.__name__}{_names(signature)}"
                pages = [page for name, page in _PAGES.items() if name in signature.parameters] or [answer.__name__]
                advice = " and ".join(f"help(pipesched.{page})" for page in pages)
                raise TypeError(f"{answer.__name__}: {error}, {expected}; see {advice}") from None
            return answer(question(*args, **keywords))

        result = answer.__annotations__["return"]
        ask.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
        ask.__doc__ = documented(answer.__doc__ or "", question)
        return ask

    return decorate


def plain_signature(record: type) -> inspect.Signature:
    """Return the signature of a dataclass, with the plain types of its settings."""
    settings, signature = declared(record), inspect.signature(record)
    return signature.replace(
        parameters=[
            parameter.replace(annotation=settings[name].kind) if name in settings else parameter
            for name, parameter in signature.parameters.items()
        ],
        return_annotation=inspect.Signature.empty,
    )


def documented(text: str, record: type) -> str:
    """Return a docstring with the settings of a dataclass, before its errors."""
    lines = [
        textwrap.fill(
            f"{setting.name}: {setting.description.text}",
            _WIDTH,
            initial_indent=" " * 4,
            subsequent_indent=" " * 8,
            break_on_hyphens=False,
        )
        for setting in declared(record).values()
    ]
    before, raises, after = inspect.cleandoc(text).partition("\nRaises:")
    return "\n".join([before.rstrip(), "", "Settings:", *lines, *(["", f"Raises:{after}"] if raises else [])])


def _names(signature: inspect.Signature) -> str:
    """Return the names of the parameters, as ``(schedule, setup, spread=..)``."""
    named = [
        f"{name}=.." if parameter.kind is parameter.KEYWORD_ONLY else name
        for name, parameter in signature.parameters.items()
    ]
    return f"({', '.join(named)})"
