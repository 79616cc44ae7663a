"""The check of a schedule before a run: whether it completes, and on which backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipesched.questions import ScheduleCounts
from pipesched.schedules import Schedule
from pipesched.schedules.check import BACKENDS, Finding, Judgement, MessageBackend, judge
from pipesched.workflows import Result, Table, asks, require_choice
from pipesched.workflows.arguments import ScheduleArgument, read_schedule_argument

if TYPE_CHECKING:
    import pandas as pd

    from pipesched.schedules.semantics import Deadlock


@dataclass(frozen=True, slots=True, repr=False)
class CheckReport(Result):
    """Whether a schedule completes, and on which backends.

    Attributes:
        schedule: The schedule, as it was given.
        judgement: Every finding on every backend.
    """

    schedule: Schedule
    judgement: Judgement

    def findings(self, backend: MessageBackend | str = MessageBackend.GLOO) -> tuple[Finding, ...]:
        """Return the faults of the schedule on `backend`; empty for a safe schedule.

        Raises:
            ArgumentError: The backend does not exist.
        """
        require_choice("backend", backend, tuple(MessageBackend))
        return self.judgement.findings[MessageBackend(backend)]

    def runs_on(self, backend: MessageBackend | str = MessageBackend.GLOO) -> bool:
        """Return whether every rank reaches its end on `backend`.

        Raises:
            ArgumentError: The backend does not exist.
        """
        return not self.findings(backend)

    def to_dict(self, backend: MessageBackend = MessageBackend.GLOO) -> dict[str, Any]:
        """Return plain data, as ``pipesched check --json`` prints it for a backend."""
        return {
            "schedule": self.schedule.name,
            "backend": backend.value,
            "runs": self.runs_on(backend),
            "findings": [_finding(finding) for finding in self.findings(backend)],
            "backends": {
                name.value: {
                    "safe": not findings,
                    "text": BACKENDS[name].text,
                    "findings": [_finding(finding) for finding in findings],
                }
                for name, findings in self.judgement.findings.items()
            },
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a row per finding and backend."""
        import pandas as pd

        columns = ["backend", "kind", "rank", "op", "text"]
        rows = [
            (backend.value, finding.kind, finding.rank, finding.index, finding.text)
            for backend, findings in self.judgement.findings.items()
            for finding in findings
        ]
        return pd.DataFrame(rows, columns=columns).astype({"rank": "Int64", "op": "Int64"})

    def table(self) -> Table:
        """Return a row per backend."""
        rows = [
            {
                "backend": backend.value,
                "verdict": verdict(self.judgement.findings[backend]),
                "what it is": traits.text,
                "first finding": next(map(str, self.judgement.findings[backend]), ""),
            }
            for backend, traits in BACKENDS.items()
        ]
        return Table(self.schedule.name, tuple(rows))

    def __repr__(self) -> str:
        verdicts = {backend.value: verdict(findings) for backend, findings in self.judgement.findings.items()}
        return f"CheckReport({self.schedule.name!r}, {verdicts})"


def _finding(finding: Finding) -> dict[str, Any]:
    deadlock = None if finding.deadlock is None else _deadlock(finding.deadlock)
    return {"kind": finding.kind, "rank": finding.rank, "op": finding.index, "text": finding.text, "deadlock": deadlock}


def _deadlock(deadlock: Deadlock) -> dict[str, Any]:
    missing = deadlock.missing
    return {
        "is_circle": missing is None,
        "links": [
            {"rank": link.rank, "op": link.index, "text": str(link.op), "next": link.why.name.lower()}
            for link in deadlock.links
        ],
        "missing": None if missing is None else {"rank": missing.rank, "op": missing.op, "text": missing.text},
        "others": deadlock.others,
    }


def verdict(findings: Sequence[Finding]) -> str:
    """Return ``safe``, ``deadlocks``, or ``wrong`` if a finding is other than a rank that waits forever."""
    return "safe" if not findings else "deadlocks" if all(finding.deadlock for finding in findings) else "wrong"


@dataclass(frozen=True)
class CheckQuestion(ScheduleCounts):
    """The question of `check`; its fields are the arguments of that function."""

    schedule: ScheduleArgument


@asks(CheckQuestion)
def check(question: CheckQuestion) -> CheckReport:
    """Check whether a schedule is complete, its messages match, and it cannot deadlock; report the result by backend.

    Args:
        schedule: A schedule, a file, a plan, or the name of a schedule, which needs ranks and micro-batches.

    Raises:
        ArgumentError: A name without its counts.
        ScheduleError: No such schedule, bad counts, or a bad file.
    """
    lists = read_schedule_argument(question.schedule, question).schedule
    return CheckReport(lists, judge(lists))
