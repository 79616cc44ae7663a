"""A killed process and a device that hangs: the rank and op that are named, and the delay."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpu_rows.card import Card
from gpu_rows.row import Row
from pipesched.executor import RankFailed
from pipesched.executor.launch import RunSpec
from pipesched.executor.launch.injected_faults import FAULT_TIMES
from pipesched.executor.runs import launch
from pipesched.profiles import DeviceKind
from pipesched.questions import MeasureSettings
from pipesched.schedules.builders import build
from pipesched.workflows.measuring import modelled_spec

TIMEOUT_S, LATER_S = 4.0, 2.0
"""The time-out of a message, and how much later the error may come [s]."""
EXPECTED = "rank 1 failed at 1F2 "
HANGING = "benchmarks.gpu_rows.faulty_layers:hanging"
TRAIN = f"train {HANGING} -s 1f1b -p 2 -m 8 --batch-size 16 --steps 1 --uniform f=1,b=2 --timeout {TIMEOUT_S:g}"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of rank 1 at its forward of micro-batch 2.

    Attributes:
        what: The fault in words.
        model: The model that is run.
        inject: Faults that are injected.
        waits_s: Time that the launcher waits before it can know [s].
        is_training: Whether `train` runs the ranks, without a launcher; on a GPU only.
    """

    what: str
    model: str
    inject: tuple[str, ...]
    waits_s: float
    is_training: bool = False

    def __str__(self) -> str:
        return self.what


FAULTS = (
    Fault("kill", "mlp:layers=2,width=64", ("kill:rank=1,op=1F2",), 0.0),
    Fault("hang", HANGING, (), TIMEOUT_S),
    Fault("hang in a training", HANGING, (), TIMEOUT_S, is_training=True),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a run with a fault.

    Attributes:
        message: The error of the run.
        seconds: Time from the fault to the error [s].
    """

    message: str
    seconds: float


def failure_of(fault: Fault, kind: DeviceKind) -> Failure:
    """Run a fault on streams of a device; return how the run ends.

    Raises:
        AssertionError: The run does not end with an error.
    """
    with _noted() as file:
        message = _message_of_training(kind) if fault.is_training else _message_of_run(fault, kind)
        ended_ns = time.monotonic_ns()
        times = file.read_text().split() if file.exists() else []
    assert message is not None, f"{fault}: the run has ended as if nothing had happened"
    return Failure(message, (ended_ns - int(times[0])) / 1e9 if times else float("nan"))


def _message_of_run(fault: Fault, kind: DeviceKind) -> str | None:
    try:
        launch(_spec_of(fault, kind))
    except RankFailed as error:
        return str(error)
    return None


def _message_of_training(kind: DeviceKind) -> str | None:
    """Return the line that a training prints before it ends its process."""
    command = [sys.executable, "-m", "pipesched", *TRAIN.split(), "--device", kind]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None, "it is a pipe"
        told = (line for line in process.stderr if line.startswith("pipesched: "))
        message = next(told, None)
        process.kill()
    return None if message is None else message.removeprefix("pipesched: ").rstrip()


def _spec_of(fault: Fault, kind: DeviceKind) -> RunSpec:
    settings = MeasureSettings(device=kind, transport="streams", timeout_s=TIMEOUT_S, iterations=1, warmup=0)
    bounds = ((0, 1), (1, 2))  # a layer of each stage
    spec = modelled_spec(build("1f1b", 2, 8), fault.model, bounds, 2, settings)
    return replace(spec, inject=fault.inject)


@contextmanager
def _noted() -> Iterator[Path]:
    """Yield the file that gets the time of the fault; the run finds its model from the project's root."""
    root = str(Path(__file__).parents[2])
    before, folder_before = dict(os.environ), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times"
        os.environ[FAULT_TIMES] = str(file)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, before.get("PYTHONPATH"))))
        os.chdir(root)
        try:
            yield file
        finally:
            os.chdir(folder_before)
            os.environ.clear()
            os.environ.update(before)


def lines(card: Card) -> Iterator[str]:
    """Yield the lines of this row's section."""
    yield f"Rank 1 fails at 1F2 of 1F1B on two streams; time-out {TIMEOUT_S:g} s."
    yield ""
    yield "| fault | named | error after | first words |"
    yield "|---|---|---|---|"
    faults = [fault for fault in FAULTS if not (fault.is_training and card.is_dry)]
    yield from card.rows(faults, partial(_row, card), 18.0)


def _row(card: Card, fault: Fault) -> str:
    failure = failure_of(fault, card.kind)
    named = "right" if failure.message.startswith(EXPECTED) else "**wrong**"
    words = failure.message.replace("|", "/")[:100]
    return f"| {fault} | {named} | {failure.seconds:.1f} s | {words} |"


ROW = Row("Kill and hang", f"rank and op named; at most {LATER_S:g} s behind the time-out", 60.0, lines)
