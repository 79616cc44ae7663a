"""Functions whose arguments are the fields of a dataclass, their question."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from pipesched.schedules import declared

Arguments = ParamSpec("Arguments")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def asks(question: Callable[Arguments, Asked]) -> Callable[[Callable[[Asked], Answer]], Callable[Arguments, Answer]]:
    """Return a decorator that gives a function the fields of its question, a dataclass, as arguments.

    A type checker follows each call, and the documentation lists each setting.
    """
    assert isinstance(question, type), "a question is a dataclass"

    def decorate(answer: Callable[[Asked], Answer]) -> Callable[Arguments, Answer]:
        @wraps(answer)
        def ask(*args: Arguments.args, **keywords: Arguments.kwargs) -> Answer:
            return answer(question(*args, **keywords))

        result = answer.__annotations__["return"]
        ask.__signature__ = inspect.signature(question).replace(return_annotation=result)  # type: ignore[attr-defined]
        ask.__doc__ = documented(answer.__doc__ or "", question)
        return ask

    return decorate


def documented(text: str, record: type) -> str:
    """Return a docstring with the settings of a dataclass, before its errors."""
    lines = [f"    {setting.name}: {setting.description.text}" for setting in declared(record).values()]
    before, raises, after = inspect.cleandoc(text).partition("\nRaises:")
    return "\n".join([before.rstrip(), "", "Settings:", *lines, *(["", f"Raises:{after}"] if raises else [])])
