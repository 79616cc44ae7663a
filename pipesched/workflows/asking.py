"""Functions whose arguments are the fields of a dataclass, their question."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from pipesched.schedules.common import declared
from pipesched.workflows.errors import require_settings

Arguments = ParamSpec("Arguments")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

_WIDTH = 100
"""Characters of a line of the documentation."""


def asks(question: Callable[Arguments, Asked]) -> Callable[[Callable[[Asked], Answer]], Callable[Arguments, Answer]]:
    """Return a decorator that gives a function the fields of its question, a dataclass, as arguments.

    A type checker follows each call, and the documentation lists each setting.
    """
    assert isinstance(question, type), "a question is a dataclass"
    signature = plain_signature(question)

    def decorate(answer: Callable[[Asked], Answer]) -> Callable[Arguments, Answer]:
        needed = [name for name, part in signature.parameters.items() if part.default is part.empty]
        call = f"{answer.__name__}({', '.join([*needed, '..'])})"

        @wraps(answer)
        def ask(*args: Arguments.args, **keywords: Arguments.kwargs) -> Answer:
            try:
                signature.bind(*args, **keywords)
            except TypeError as error:
                raise TypeError(
                    f"{answer.__name__}: {error}, expected {call}; see help(pipesched.{answer.__name__})"
                ) from None
            asked = question(*args, **keywords)
            require_settings(asked)
            return answer(asked)

        result = answer.__annotations__["return"]
        ask.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
        ask.__doc__ = documented(answer.__doc__ or "", question)
        return ask

    return decorate


def shares_of_steps(progress: Callable[[float], None], count: int) -> Iterator[Callable[[float], None]]:
    """Yield a callback for each of `count` steps; it takes the step's finished share and reports the total's."""
    for index in range(count):

        def tick(share: float, index: int = index) -> None:
            progress((index + share) / count)

        yield tick


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
