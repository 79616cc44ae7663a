"""What to do, in what order: op lists per rank, and what can be said of them without running them."""

from schedules.catalogue import CATALOGUE, build
from schedules.check import Finding, check, require_runnable
from schedules.lower import lower
from schedules.op import (
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
from schedules.schedule import Schedule, ScheduleError, compute_only, routes
from schedules.timeline import MemorySample, Span, Timeline

__all__ = [
    "CATALOGUE",
    "Average",
    "Compute",
    "Finding",
    "MemorySample",
    "Message",
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
