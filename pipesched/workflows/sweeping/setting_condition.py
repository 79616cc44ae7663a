"""A condition on settings, as people write it: ``m % p == 0 and p * v <= 32``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pipesched.schedules import shown
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
    ast.Not: operator.not_,
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
    """A condition, which is checked when it is read and asked of many settings.

    Attributes:
        text: Arithmetic, comparisons, ``and``, ``or``, ``not`` and ``in`` over names of columns, numbers and texts.
    """

    text: str
    _tree: ast.expr

    @staticmethod
    def read(text: str, columns: Collection[str]) -> SettingCondition:
        """Return the condition that `text` says, of settings with these columns.

        Raises:
            ArgumentError: It is none, or of another column.
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
        return SettingCondition(text, tree)

    def holds(self, row: Mapping[str, object]) -> bool:
        """Return whether it holds of a setting; it does not where it compares what the setting does not have.

        Raises:
            ArgumentError: Something is divided by 0.
        """
        try:
            return bool(_value(self._tree, row))
        except TypeError:
            return False
        except ArithmeticError as error:
            raise ArgumentError(f"where: got {shown(self.text)}, expected a condition: {error}; try another") from error


def _is_known(node: ast.AST) -> bool:
    structure = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Name, ast.Load)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float | str)
    return isinstance(node, (*structure, ast.Tuple, ast.List)) or type(node) in _OPERATORS


def _value(node: ast.expr, row: Mapping[str, object]) -> Any:
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
            return _OPERATORS[type(op)](_number(left, row), _number(right, row))
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, row) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_value(part, row) for part in parts)
        case ast.Compare(left=first, ops=ops, comparators=others):
            values = [_value(item, row) for item in (first, *others)]
            pairs = zip(ops, values[:-1], values[1:], strict=True)
            return all(_OPERATORS[type(op)](left, right) for op, left, right in pairs)
    raise AssertionError("it was read")


def _number(node: ast.expr, row: Mapping[str, object]) -> int | float:
    """Return a number; of texts there is no arithmetic.

    Raises:
        TypeError: It is none.
    """
    value = _value(node, row)
    if not isinstance(value, int | float):
        raise TypeError
    return value
