"""A condition on settings, in the form ``m % p == 0 and p * v <= 32``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

from pipesched.schedules.common import shown
from pipesched.workflows import ArgumentError

_Reader: TypeAlias = Callable[[Mapping[str, object]], Any]

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
    _read: _Reader = field(compare=False, repr=False)

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
                    f"where: got {shown(text)}, expected names of columns, numbers, texts, arithmetic, "
                    f"comparisons, and, or, not, in; try {_EXAMPLE}"
                )
        return SettingCondition(text, _reader(tree))

    def holds(self, row: Mapping[str, object]) -> bool:
        """Return whether the condition holds for a setting; a comparison with a missing value is false.

        Raises:
            ArgumentError: A number is divided by 0, or the result is neither true nor false.
        """
        try:
            return _truth(self._read(row))
        except TypeError:
            return False
        except ArithmeticError as error:
            raise ArgumentError(f"where: got {shown(self.text)}, expected a condition: {error}; try another") from error
        except _NoConditionError as error:
            raise ArgumentError(
                f"where: got {shown(self.text)}, which says {shown(str(error))} of a setting, expected a condition; "
                f"try {_EXAMPLE}"
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


def _reader(node: ast.expr) -> _Reader:
    """Return a function that evaluates an expression for a row; the tree is read once."""
    match node:
        case ast.Constant(value=value):
            return lambda _: value
        case ast.Name(id=name):
            column = SHORT_NAMES.get(name, name)
            return lambda row: row.get(column)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            members = [_reader(item) for item in items]
            return lambda row: [member(row) for member in members]
        case ast.UnaryOp(op=op, operand=operand):
            apply, inner = _OPERATORS[type(op)], _reader(operand)
            return lambda row: apply(inner(row))
        case ast.BinOp(op=op, left=left, right=right):
            apply, first, second = _OPERATORS[type(op)], _number_reader(left), _number_reader(right)
            return lambda row: apply(first(row), second(row))
        case ast.BoolOp(op=op, values=parts):
            readers, decides = [_reader(part) for part in parts], all if isinstance(op, ast.And) else any
            return lambda row: decides(_truth(reader(row)) for reader in readers)
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _comparison([_OPERATORS[type(op)] for op in ops], [_reader(item) for item in (left, *others)])
    raise AssertionError("it was read")


def _comparison(operators: Sequence[Callable[..., Any]], readers: Sequence[_Reader]) -> _Reader:
    if len(operators) == 1:
        (compare,), (first, second) = operators, readers
        return lambda row: compare(first(row), second(row))

    def compare_all(row: Mapping[str, object]) -> bool:
        values = [reader(row) for reader in readers]
        return all(compare(*pair) for compare, pair in zip(operators, pairwise(values), strict=True))

    return compare_all


def _number_reader(node: ast.expr) -> _Reader:
    """Return a function that evaluates a number for a row, and raises a TypeError for another value."""
    reader = _reader(node)

    def read(row: Mapping[str, object]) -> int | float:
        value = reader(row)
        if not isinstance(value, int | float):
            raise TypeError
        return value

    return read
