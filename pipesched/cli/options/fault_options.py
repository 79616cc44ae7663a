"""Options of ``pipesched run`` and ``train`` for injected failures of ranks, and for numbers that are not finite."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pipesched.cli.errors import InputError

if TYPE_CHECKING:
    from pipesched.executor.launch import RunSpec
    from pipesched.schedules import Schedule


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """Injected faults and numerical checks of a run."""

    panel: ClassVar[str] = "Run"
    inject: Annotated[
        list[str] | None,
        typer.Option(
            help="Fault to inject: kill, stop, raise, exit or nan, as kill:rank=2,op=2B3, in a training "
            "kill:rank=2,op=2B3,step=5; slow:rank=1,factor=3, drop-link:0-1,after=10, disk-full; repeatable."
        ),
    ] = None
    check_finite: Annotated[
        bool, typer.Option("--check-finite", help="End at the first op that gives NaN or infinity, and name it.")
    ] = False

    def require_there(self, lists: Schedule, num_microbatches: int, num_times: int) -> None:
        """Refuse invalid faults, and faults that cannot occur on any rank.

        Args:
            lists: The lists of the run, or of the first step.
            num_microbatches: Micro-batches of a step, or of a measured list.
            num_times: Steps, or runs of the list.

        Raises:
            InputError: A fault is refused.
        """
        from pipesched.executor import ExecutionError
        from pipesched.executor.launch import read_fault, require_there

        try:
            require_there([read_fault(text) for text in self.inject or ()], lists, num_microbatches, num_times)
        except ExecutionError as error:
            raise InputError(f"--{error}") from error

    def applied(self, spec: RunSpec) -> RunSpec:
        """Return the run with these faults and checks.

        Raises:
            InputError: Numbers are checked in emulated stages.
        """
        from pipesched.executor import ExecutionError

        if self.check_finite and spec.is_emulated:
            raise InputError("--check-finite: got it without --model, expected one: emulated stages have no numbers")
        try:
            return replace(spec, inject=tuple(self.inject or ()), is_finite_checked=self.check_finite)
        except ExecutionError as error:
            raise InputError(f"--{error}") from error
