"""Faults of ranks and of their launchers: the fault of a run, its place, and the required end of the run."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fault_rows.faulty_run import FaultyRun
from pipesched.schedules import Schedule
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower

NUM_RANKS = 4
NUM_MICROBATCHES = 8
TIMEOUT_S = 3.0
NAMED_S, GONE_S = 0.5, 2.0
"""Longest time from a death, or from the time-out of a standstill, to its report and to the end of the run [s]."""
STEPS = 5
"""Number of steps of a training; a fault is injected at one of them."""
FAILING = f"{Path(__file__).parents[2] / 'tests' / 'executor' / 'faulty_models.py'}:failing:"


@dataclass(frozen=True, slots=True)
class Place:
    """A way to start ranks.

    Attributes:
        name: Name in the table.
        command: Arguments of ``pipesched``, up to the model.
        brief: Arguments of a short run.
        forever: Arguments of a long run.
        microbatches: Micro-batches of a step.
        is_training: Whether micro-batches are numbered over all steps.
        is_one_process: Whether all ranks take turns in one process.
        is_under_torchrun: Whether two agents of torchrun start the ranks.
    """

    name: str
    command: str
    brief: str
    forever: str
    microbatches: int = NUM_MICROBATCHES
    is_training: bool = False
    is_one_process: bool = False
    is_under_torchrun: bool = False


RUN = f"run -s 1f1b -p {NUM_RANKS} -m {NUM_MICROBATCHES} --timeout {TIMEOUT_S:g} --check-finite --model"
TRAIN = (
    f"train -s 1f1b -p {NUM_RANKS} -m {NUM_MICROBATCHES} --batch-size {NUM_MICROBATCHES} "
    f"--uniform f=1ms,b=2ms --partition uniform --check-finite"
)
DISTRIBUTED = f"{TRAIN} --timeout {TIMEOUT_S:g} --distributed"
BRIEF = f"--steps {STEPS}"
PLACES = (
    Place("run, gloo", RUN, "", "--iterations 1000000"),
    Place("train, gloo", DISTRIBUTED, BRIEF, "--steps 1000000", is_training=True),
    Place("train, one process", TRAIN, BRIEF, "--steps 1000000", is_training=True, is_one_process=True),
    Place("run, two nodes of torchrun", RUN, "", "--iterations 1000000", is_under_torchrun=True),
    Place(
        "train, two nodes of torchrun",
        DISTRIBUTED.replace(" --distributed", ""),
        BRIEF,
        "--steps 1000000",
        is_training=True,
        is_under_torchrun=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a run, and the required end of the run.

    Attributes:
        options: Options that inject the fault; empty if `act` causes it.
        told: Pattern of the required message.
        act: Function that causes the fault in a running run.
        exit_code: Required exit code of the launcher.
        limit_s: Longest time from the fault to the end of the run [s].
        named_s: Longest time from the fault to its report [s].
        is_early: Whether the fault happens when all ranks are watched, before they work.
    """

    options: str
    told: str
    act: Callable[[FaultyRun], None] | None = None
    exit_code: int = 3
    limit_s: float = GONE_S
    named_s: float = GONE_S
    is_early: bool = False


MODEL = "mlp:layers=8,width=16"
INJECTED = ("kill", "raise", "exit", "nan", "stop", "drop-link", "disk-full")
OWN = ("exception of a layer", "wrong shape")
OUTSIDE = ("SIGKILL to a rank", "SIGINT to the launcher", "SIGTERM to the launcher", "SIGKILL to the launcher")
AGENTS = (
    "SIGKILL to an agent",
    "SIGTERM to an agent",
    "SIGINT to an agent",
    "SIGSTOP to a rank and SIGKILL to its agent",
)
EARLY = "SIGKILL to a rank before its first op"
BESIDE = ("SIGKILL to the fork server",)
SIGNALS = {"SIGINT": (signal.SIGINT, 130), "SIGTERM": (signal.SIGTERM, 130), "SIGKILL": (signal.SIGKILL, -9)}


def kinds_of(place: Place) -> tuple[str, ...]:
    """Return the kinds of faults that are possible at a place."""
    if place.is_one_process:
        return (*OWN, "NaN of a layer", *OUTSIDE[1:])
    if place.is_under_torchrun:
        return (*INJECTED[:-1], *OWN, OUTSIDE[0], EARLY, *AGENTS)
    return (*INJECTED, *OWN, *OUTSIDE, *BESIDE)


def fault_of(kind: str, place: Place, chance: random.Random) -> Fault:
    """Return a fault of a kind, at a random rank and op."""
    rank, step = chance.randrange(NUM_RANKS), chance.randrange(STEPS) if place.is_training else 0
    plain = f"{place.command} {MODEL} {place.brief}"
    if kind in OWN or kind == "NaN of a layer":
        return _of_a_layer(kind, place, rank, chance)
    if kind == "disk-full":
        rank = rank if place.is_training else 0
        told = f"rank {rank} failed to write: .*No space left on device"
        return Fault(f"{plain} --inject disk-full:rank={rank}", told)
    if kind == "drop-link":
        first, after = rank % (NUM_RANKS - 1), chance.randrange(place.microbatches)
        told = (
            rf"rank ({first}|{first + 1}) failed at \d[FB]{after}\b.*it has waited 3\.\d+ s for the "
            rf"(activation|gradient) {after} of stage \d, which rank ({first}|{first + 1}) "
        )
        options = f"{plain} --inject drop-link:{first}-{first + 1},after={after}"
        return Fault(options, told, limit_s=TIMEOUT_S + GONE_S, named_s=TIMEOUT_S + GONE_S)
    if kind in INJECTED:
        is_computed = place.is_training or kind == "nan"
        op = chance.choice(
            [str(op) for op in _lists().ops[rank] if not is_computed or re.fullmatch(r"\d[FB]\d+", str(op))]
        )
        at = f",step={step}" if place.is_training else ""
        numbers = re.sub(r"\d+$", lambda match: str(int(match[0]) + step * place.microbatches), op)
        said = f"({_SAID[kind]}|{GONE})" if place.is_under_torchrun else _SAID[kind]
        told = f"{_named(rank, numbers, place.is_training)}.*{said}"
        limit_s = GONE_S + (TIMEOUT_S if kind == "stop" else 0)
        named_s = NAMED_S if kind in ("kill", "exit") else limit_s
        return Fault(f"{plain} --inject {kind}:rank={rank},op={op}{at}", told, limit_s=limit_s, named_s=named_s)
    going_on = f"{place.command} {FAILING}how=none {place.forever}"
    if place.is_under_torchrun:
        return _of_agents(kind, going_on, rank)
    match kind.split()[0], kind.split()[-1]:
        case _, "rank":
            told = rf"rank {rank} failed (at|before) .*({GONE}|was killed by signal 9)"
            return Fault(going_on, told, lambda run: os.kill(run.ranks()[rank], signal.SIGKILL), named_s=NAMED_S)
        case name, "launcher":
            number, code = SIGNALS[name]
            told = "stopped" if code > 0 else ""
            return Fault(going_on, told, lambda run: os.kill(run.launcher.pids[0], number), code)
        case _:
            told = "the process that all ranks are forked from was killed by signal 9"
            return Fault(going_on, told, lambda run: os.kill(run.below(1)[0], signal.SIGKILL))


def _of_a_layer(kind: str, place: Place, rank: int, chance: random.Random) -> Fault:
    """Return a fault in the code of a layer of a rank, at one of its forwards.

    A probe of the layers of a training, or of the shapes of messages, is also a forward: a fault at the first forward
    fails there, before all ops.
    """
    microbatch = chance.randrange(place.microbatches * STEPS) if place.is_training else chance.randrange(8)
    how = {"exception of a layer": "raise", "wrong shape": "shape"}.get(kind, "nan")
    layer = 2 * rank + (0 if kind == "wrong shape" else chance.randrange(2))
    words = {"raise": "a layer's own fault", "shape": "shapes cannot be multiplied", "nan": "got NaN"}[how]
    place_of_fault = _named(rank, f"{rank}F{microbatch}", place.is_training)
    if microbatch == 0 and how != "nan" and place.is_training:
        place_of_fault = r"layer \d "
    elif microbatch == 0 and how != "nan" and rank < NUM_RANKS - 1:
        place_of_fault = f"stage {rank}: got "
    options = f"{place.command} {FAILING}how={how},layer={layer},at={microbatch} {place.brief}"
    return Fault(options, f"{place_of_fault}.*{words}")


def _of_agents(kind: str, going_on: str, rank: int) -> Fault:
    """Return a fault from outside under torchrun: of a rank, or of its agent."""
    node = rank * 2 // NUM_RANKS
    own = rf"rank [{' '.join(str(other) for other in range(NUM_RANKS) if other * 2 // NUM_RANKS == node)}] failed"
    gone = r"(rank|process) \d failed (at|before) .*(torchrun's store at \S+ is gone|nothing has been heard of its)"
    match kind.split()[0], kind.split()[-1]:
        case _, "rank" | "op":
            told = rf"(rank|process) {rank} failed (at|before) .*({GONE}|was killed by signal 9)"
            is_early = kind == EARLY

            def kill(run: FaultyRun) -> None:
                os.kill(run.ranks()[rank], signal.SIGKILL)

            return Fault(going_on, told, kill, 1, named_s=NAMED_S, is_early=is_early)
        case "SIGSTOP", _:

            def stop(run: FaultyRun) -> None:
                os.kill(run.ranks()[rank], signal.SIGSTOP)
                os.kill(run.launcher.pids[node], signal.SIGKILL)

            return Fault(going_on, gone, stop, 1)
        case name, _:
            told = gone if name == "SIGKILL" else rf"{own} (at|before) .*torchrun's agent has ended it by {name}"
            return Fault(going_on, told, lambda run: os.kill(run.launcher.pids[node], SIGNALS[name][0]), 1)


GONE = "its process ended before the end of its op list"
_SAID = {
    "kill": "was killed by signal 9",
    "raise": "a fault was injected here",
    "exit": "ended with exit code 0",
    "nan": "got NaN",
    "stop": "stopped by a signal",
}
"""Required text of the message, by injected fault."""


def _named(rank: int, op: str, has_version: bool) -> str:
    version = r"(@\d+)?" if has_version else ""
    return rf"rank {rank} failed at {op}{version}[ :]"


def _lists() -> Schedule:
    return lower(build("1f1b", NUM_RANKS, NUM_MICROBATCHES))
