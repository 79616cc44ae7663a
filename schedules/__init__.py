"""What to do, in what order: op lists per rank, and what can be said of them without running them."""

from pipesched.schedules.catalogue import CATALOGUE, build
from pipesched.schedules.check import Finding, check, require_runnable
from pipesched.schedules.lower import lower
from pipesched.schedules.op import (
    Average,
    Compute,
    Message,
    Op,
    Overlap,
    Payload,
    Phase,
    Recv,
    Reduce,
    Reshard,
    Send,
    Step,
    Unshard,
    computes,
    gives,
    needs,
)
from pipesched.schedules.schedule import NotRunnableError, Schedule, ScheduleError, compute_only, routes
from pipesched.schedules.timeline import MemorySample, Span, Timeline

__all__ = [
    "CATALOGUE",
    "Average",
    "Compute",
    "Finding",
    "MemorySample",
    "Message",
    "NotRunnableError",
    "Op",
    "Overlap",
    "Payload",
    "Phase",
    "Recv",
    "Reduce",
    "Reshard",
    "Schedule",
    "ScheduleError",
    "Send",
    "Span",
    "Step",
    "Timeline",
    "Unshard",
    "build",
    "check",
    "compute_only",
    "computes",
    "gives",
    "lower",
    "needs",
    "require_runnable",
    "routes",
]
