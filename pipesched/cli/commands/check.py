"""``pipesched check``: completeness and deadlocks of a schedule, by backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.cli.errors import NEGATIVE
from pipesched.cli.options.option_groups import Json, grouped
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.terminal import print_beside, print_json, print_lines
from pipesched.schedules.check import MessageBackend
from pipesched.workflows import checking

if TYPE_CHECKING:
    from pipesched.schedules import Schedule
    from pipesched.schedules.check import Cell, Finding, Judgement

_MOST_SHOWN = 20
"""Findings; data have them all."""


@grouped
def check(
    *,
    schedule: ScheduleOptions,
    backend: Annotated[
        MessageBackend, typer.Option(help="Backend of the messages; gloo and nccl as in 'pipesched run'.")
    ] = MessageBackend.GLOO,
    json: Json = False,
) -> None:
    """Check whether a schedule is complete, its messages match, and it cannot deadlock; print the result by backend.

    Exits with 1 if it does not run on --backend.
    """
    from pipesched.workflows.checking import check as check_lists

    report = check_lists(schedule.load())
    loaded, judgement = report.schedule, report.judgement
    findings = judgement.findings[backend]
    if json:
        print_json("check", report.to_dict(backend))
    else:
        num_ops = sum(map(len, loaded.ops))
        if not findings:
            print_lines([
                f"{loaded.name}: fine: {loaded.num_ranks} ranks, {loaded.num_stages} stages, "
                f"{loaded.num_microbatches} micro-batches, {num_ops} ops; every rank ends"
            ])  # fmt: skip
        _print_findings(loaded.name, findings, judgement.lists[backend])
        is_whole = loaded.is_lowered or findings
        print("" if is_whole else "\nwith the Sends and Recvs that pipesched, or PyTorch for its runtime, adds:")
        _print_backends(findings, judgement)
    if findings:
        raise typer.Exit(NEGATIVE)


def _print_findings(name: str, findings: tuple[Finding, ...], lists: Schedule) -> None:
    """Print each finding, then the grid around their places."""
    print_lines(f"{name}: {finding}" for finding in findings[:_MOST_SHOWN])
    if len(findings) > _MOST_SHOWN:
        print_lines([f"{name}: and {len(findings) - _MOST_SHOWN} more; --json shows all"])
    from pipesched.schedules.check import excerpt

    rows = excerpt(lists, [place for finding in findings[:_MOST_SHOWN] for place in finding.places])
    if not rows:
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    width = max(len(cell.text) for cells in rows.values() for cell in cells) + 3
    print()
    head_width = len(f"rank {max(rows)}") + 1
    num_cells = max(1, (console.width - head_width) // width)
    for rank, cells in rows.items():
        for first in range(0, len(cells), num_cells):
            line = Text(("" if first else f"rank {rank}").ljust(head_width))
            for cell in cells[first : first + num_cells]:
                style = "bold reverse red" if cell.is_marked else ""
                line.append(_text(cell, console.is_terminal).ljust(width), style)
            line.rstrip()
            console.print(line)


def _text(cell: Cell, has_colours: bool) -> str:
    return f">{cell.text}<" if cell.is_marked and not has_colours else f" {cell.text} "


def _print_backends(findings: tuple[Finding, ...], judgement: Judgement) -> None:
    """Print the verdict of each backend, and deadlocks that have not been printed."""
    from pipesched.schedules.check import BACKENDS

    for backend, traits in BACKENDS.items():
        here = judgement.findings[backend]
        print_beside(f"{backend:13} {checking.verdict(here):9} ", traits.text)
        for finding in here:
            if finding.deadlock and finding not in findings:
                print_beside(" " * 26, str(finding))
