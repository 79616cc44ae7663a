"""A condition on settings, in the form ``m % p == 0 and p * v <= 32``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pipesched.schedules.common import shown
from pipesched.workflows import ArgumentError

SHORT_NAMES = {"p": "num_ranks", "m": "num_microbatches", "v": "num_chunks"}

_EXAMPLE = "'m % p == 0 and p * v <= 32'"
_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Not: lambda value: not _truth(value),
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, values: value in values,
    ast.NotIn: lambda value, values: value not in values,
}
_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class SettingCondition:
    """A condition on settings, checked when it is read.

    Attributes:
        text: Arithmetic, comparisons, ``and``, ``or``, ``not`` and ``in`` over names of columns, numbers and texts.
    """

    text: str
    _tree: ast.expr = field(compare=False, repr=False)

    @staticmethod
    def read(text: str, columns: Collection[str]) -> SettingCondition:
        """Return the condition in a text about settings with these columns.

        Raises:
            ArgumentError: The text is no condition, or names another column.
        """
        try:
            tree = ast.parse(text.strip() if len(text) <= _LONGEST else "", mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ArgumentError(f"where: got {shown(text)}, expected a condition; try {_EXAMPLE}") from None
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and SHORT_NAMES.get(node.id, node.id) not in columns:
                expected = ", ".join([*SHORT_NAMES, *columns])
                raise ArgumentError(f"where: got no column {node.id}, expected one of {expected}")
            if not _is_known(node):
                raise ArgumentError(
                    f"where: got {shown(text)}, expected only names of columns, numbers, texts, arithmetic, "
                    f"comparisons, and, or, not, in; try {_EXAMPLE}"
                )
        return SettingCondition(text, tree)

    def holds(self, row: Mapping[str, object]) -> bool:
        """Return whether the condition holds for a setting; a comparison with a missing value is false.

        Raises:
            ArgumentError: A number is divided by 0, or the result is neither true nor false.
        """
        try:
            return _truth(_value(self._tree, row))
        except TypeError:
            return False
        except ArithmeticError as error:
            raise ArgumentError(
                f"where: got {shown(self.text)}, expected a condition: {error}; correct the condition"
            ) from error
        except _NoConditionError as error:
            raise ArgumentError(
                f"where: got {shown(self.text)}, which fails for a setting ({shown(str(error))}), expected a "
                f"condition; try {_EXAMPLE}"
            ) from None


class _NoConditionError(Exception):
    """A result that is neither true nor false."""


def _truth(value: object) -> bool:
    """Return a value that is true or false; a missing value is false."""
    if value is None or isinstance(value, bool):
        return bool(value)
    raise _NoConditionError(value)


def _is_known(node: ast.AST) -> bool:
    structure = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Name, ast.Load)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float | str)
    return isinstance(node, (*structure, ast.Tuple, ast.List)) or type(node) in _OPERATORS


def _value(node: ast.expr, row: Mapping[str, object]) -> Any:
    """Return the value of an expression for a setting; raises a TypeError for arithmetic with another value."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return row.get(SHORT_NAMES.get(name, name))
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return [_value(item, row) for item in items]
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATORS[type(op)](_value(operand, row))
        case ast.BinOp(op=op, left=left, right=right):
            numbers = _value(left, row), _value(right, row)
            if not all(isinstance(number, int | float) for number in numbers):
                raise TypeError
            return _OPERATORS[type(op)](*numbers)
        case ast.BoolOp(op=op, values=parts):
            decides = all if isinstance(op, ast.And) else any
            return decides(_truth(_value(part, row)) for part in parts)
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = [_value(item, row) for item in (left, *others)]
            return all(_OPERATORS[type(op)](*pair) for op, pair in zip(ops, pairwise(values), strict=True))
    raise AssertionError("it was read")
