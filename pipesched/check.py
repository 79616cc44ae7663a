"""``pipesched check``: can this schedule run to its end?"""

from __future__ import annotations

import typer

from pipesched.errors import NEGATIVE
from pipesched.options import Json, ScheduleOptions, grouped
from pipesched.output import print_json


@grouped
def check(schedule: ScheduleOptions, json: Json = False) -> None:
    """Check a schedule: complete, ordered, matched, free of deadlock. Exit code 1 when it is not."""
    from schedules.check import check as find

    loaded = schedule.load()
    findings = find(loaded)
    if json:
        print_json(
            {
                "schedule": loaded.name,
                "runs": not findings,
                "findings": [
                    {"kind": finding.kind, "rank": finding.rank, "op": finding.index, "text": finding.text}
                    for finding in findings
                ],
            }
        )
    elif findings:
        for finding in findings:
            print(f"{loaded.name}: {finding}")
    else:
        num_ops = sum(map(len, loaded.ops))
        print(f"{loaded.name}: fine: {loaded.num_ranks} ranks, {loaded.num_stages} stages, "
              f"{loaded.num_microbatches} micro-batches, {num_ops} ops; every rank reaches its end")  # fmt: skip
    if findings:
        raise typer.Exit(NEGATIVE)
