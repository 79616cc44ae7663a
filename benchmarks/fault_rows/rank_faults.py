"""R3: ranks, launchers and the processes beside them, killed, stopped or failing at random ops, over each transport."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from namespaces import NotAllowed, start_torchrun, two_nodes

from fault_rows.attempt import Command, attempt
from fault_rows.faulty_run import Agents, FaultyRun, Launcher
from fault_rows.row import Row
from fault_rows.workers import load_torch, worked_off
from pipesched.schedules import Schedule
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower

NUM_RANKS = 4
NUM_MICROBATCHES = 8
TIMEOUT_S = 3.0
GONE_S = 2.0
"""All must be gone so soon after a death; of a rank that stands still, so soon after the time-out [s]."""
STEPS = 5
"""Steps of a training, at one of which a fault is injected."""
BANDWIDTH_BYTES_PER_S = 25e6
NUM_WORKERS = 3
SHOWN = 12
SEED = 3
FAILING = f"{Path(__file__).with_name('failing_model.py')}:failing:"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 -- looked at, not written to


@dataclass(frozen=True, slots=True)
class Place:
    """Where ranks run.

    Attributes:
        name: As the table has it.
        command: Behind ``pipesched``, up to the model.
        brief: What lets it be over soon.
        forever: What lets it go on for long.
        microbatches: Micro-batches of a step.
        is_training: Whether ops are named as of all steps.
        is_one_process: Whether all ranks take turns in one.
        is_under_torchrun: Whether two agents start the ranks.
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
    Place("two nodes of torchrun, gloo", RUN, "", "--iterations 1000000", is_under_torchrun=True),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What befalls a run, and what must come of it.

    Attributes:
        options: Behind the command, that let it happen; empty: `act` does it.
        told: A pattern of what the message must say.
        act: Does it to a run that goes on.
        exit_code: Of the launcher; None: that of a rank that failed.
        limit_s: From the fault until all is over [s].
    """

    options: str
    told: str
    act: Callable[[FaultyRun], None] | None = None
    exit_code: int = 3
    limit_s: float = GONE_S


MODEL = "mlp:layers=8,width=16"
INJECTED = ("kill", "raise", "exit", "nan", "stop", "drop-link", "disk-full")
OWN = ("exception of a layer", "wrong shape")
OUTSIDE = ("SIGKILL to a rank", "SIGINT to the launcher", "SIGTERM to the launcher", "SIGKILL to the launcher")
BESIDE = ("SIGKILL to what ranks are forked from", "SIGKILL to the reference process")
SIGNALS = {"SIGINT": (signal.SIGINT, 130), "SIGTERM": (signal.SIGTERM, 130), "SIGKILL": (signal.SIGKILL, -9)}


def kinds_of(place: Place) -> tuple[str, ...]:
    """Return the faults that can befall a run there."""
    if place.is_one_process:
        return (*OWN, "NaN of a layer", *OUTSIDE[1:])
    if place.is_under_torchrun:
        return ("kill", "raise", "exit", "nan", "stop", "drop-link", *OWN, "SIGKILL to a rank")
    return (*INJECTED, *OWN, *OUTSIDE, *BESIDE)


def fault_of(kind: str, place: Place, chance: random.Random) -> Fault:
    """Return a fault of some kind, at a rank and an op that chance picks."""
    rank, step = chance.randrange(NUM_RANKS), chance.randrange(STEPS) if place.is_training else 0
    plain = f"{place.command} {MODEL} {place.brief}"
    if kind in OWN or kind == "NaN of a layer":
        microbatch = chance.randrange(place.microbatches * STEPS) if place.is_training else chance.randrange(8)
        how = {"exception of a layer": "raise", "wrong shape": "shape"}.get(kind, "nan")
        layer = 2 * rank + (0 if kind == "wrong shape" else chance.randrange(2))
        options = f"{place.command} {FAILING}how={how},layer={layer},at={microbatch} {place.brief}"
        words = {"raise": "a layer's own fault", "shape": "shapes cannot be multiplied", "nan": "got NaN"}[how]
        told = f"{_named(rank, f'{rank}F{microbatch}', place.is_training)}.*{words}"
        return Fault(options, told)
    if kind == "disk-full":
        rank = rank if place.is_training else 0
        told = f"rank {rank} failed behind its last op: .*No space left on device"
        return Fault(f"{plain} --inject disk-full:rank={rank}", told)
    if kind == "drop-link":
        first, after = rank % (NUM_RANKS - 1), chance.randrange(place.microbatches)
        told = (
            rf"rank ({first}|{first + 1}) failed at \d[FB]{after}\b.*it has waited 3\.\d+ s for the "
            rf"(activation|gradient) {after} of stage \d, which rank ({first}|{first + 1}) "
        )
        return Fault(f"{plain} --inject drop-link:{first}-{first + 1},after={after}", told)
    if kind in ("kill", "exit") and place.is_under_torchrun:
        op = chance.choice([str(op) for op in _lists().ops[rank]])
        return Fault(f"{plain} --inject {kind}:rank={rank},op={op}", f"{_named(rank, op, False)}.*{GONE}")
    if kind in INJECTED:
        is_computed = place.is_training or kind == "nan"
        op = chance.choice(
            [str(op) for op in _lists().ops[rank] if not is_computed or re.fullmatch(r"\d[FB]\d+", str(op))]
        )
        at = f",step={step}" if place.is_training else ""
        numbers = re.sub(r"\d+$", lambda match: str(int(match[0]) + step * place.microbatches), op)
        told = f"{_named(rank, numbers, place.is_training)}.*{_SAID[kind]}"
        limit_s = GONE_S + (TIMEOUT_S if kind == "stop" else 0)
        return Fault(f"{plain} --inject {kind}:rank={rank},op={op}{at}", told, limit_s=limit_s)
    going_on = f"{place.command} {MODEL} {place.forever}"
    match kind.split()[0], kind.split()[-1]:
        case _, "rank":
            told = rf"rank {rank} failed (at|before) .*({GONE}|was killed by signal 9)"
            return Fault(going_on, told, lambda run: os.kill(run.ranks()[rank], signal.SIGKILL))
        case name, "launcher":
            number, code = SIGNALS[name]
            told = "stopped" if code > 0 else ""
            return Fault(going_on, told, lambda run: os.kill(run.launcher.pids[0], number), code)
        case _, "from":
            told = "the process that all ranks are forked from was killed by signal 9"
            return Fault(going_on, told, lambda run: os.kill(run.below(1)[0], signal.SIGKILL))
    averaged = going_on.replace("-s 1f1b", "-s avgpipe").replace(f"-p {NUM_RANKS} ", "-p 2 ")
    told = r"reference process of device \d \(pid \d+\) was killed by signal 9"
    return Fault(averaged, told, lambda run: os.kill(run.below(3)[0], signal.SIGKILL))


GONE = "its process ended before its list did"
_SAID = {
    "kill": "was killed by signal 9",
    "raise": "a fault was injected here",
    "exit": "ended with exit code 0",
    "nan": "got NaN",
    "stop": "stopped by a signal",
}
"""What the message must say of an injected fault."""


def _named(rank: int, op: str, has_version: bool) -> str:
    version = r"(@\d+)?" if has_version else ""
    return rf"rank {rank} failed at {op}{version}[ :]"


def _lists() -> Schedule:
    return lower(build("1f1b", NUM_RANKS, NUM_MICROBATCHES))


@contextmanager
def starter(place: Place) -> Iterator[Callable[[str], Callable[[Path, Mapping[str, str]], Launcher]]]:
    """Yield what makes of a command line that which starts it.

    Raises:
        NotAllowed: Nobody may make the nodes of torchrun here.
    """
    if not place.is_under_torchrun:
        yield lambda line: lambda folder, given: _Alone(Command(line.split(), folder, None, given), place)
        return
    with two_nodes(BANDWIDTH_BYTES_PER_S) as nodes:

        def under_torchrun(line: str) -> Callable[[Path, Mapping[str, str]], Launcher]:
            def start(folder: Path, given: Mapping[str, str]) -> Launcher:
                made = attempt([*line.split(), "--no-pin", "--job", "job.json"], folder, limit_s=60)
                if made.exit_code:
                    raise SystemExit(f"faults: {line}: {made.errors}")
                words = ["-m", "pipesched.executor", str(folder / "job.json"), "--trust-model"]
                return Agents(start_torchrun(nodes, NUM_RANKS // len(nodes), words, given))

            return start

        yield under_torchrun


class _Alone:
    """The launcher of a command."""

    is_anothers = False

    def __init__(self, command: Command, place: Place) -> None:
        self._command = command
        self.pids: Sequence[int] = [command.pid]
        self.generations = 0 if place.is_one_process else 2

    def poll(self) -> int | None:
        return self._command.poll()

    def end(self) -> str:
        return self._command.end()[1]


def outcome_of(kind: str, place: Place, chance: random.Random) -> tuple[float | None, str]:
    """Let a fault befall a run; return how soon all was over [s] (None: not in time), and what was wrong, if any."""
    fault = fault_of(kind, place, chance)
    with starter(place) as starting:
        run = FaultyRun(starting(fault.options))
        run.await_ranks(2 if "avgpipe" in fault.options else NUM_RANKS * (not place.is_one_process))
        if fault.act:
            sleep(chance.uniform(1, 2))
            fault.act(run)
            run.fault_s = monotonic()
        else:
            run.await_fault()
        after_s, code, errors, left = run.end(fault.limit_s)
    expected = 1 if place.is_under_torchrun else fault.exit_code
    said = [line for line in errors.splitlines() if not re.search(r": \d+ s(, \d+%)?$", line)]  # how far it is
    wrongs = {
        f"exit code {code}, not {expected}": code != expected,
        "the wrong thing told": not re.search(fault.told, errors),
        "more than a line": not place.is_under_torchrun and len(said) > 1,
        f"over after {after_s or float('nan'):.1f} s": after_s is None or after_s > fault.limit_s,
        f"left {', '.join(left)}": bool(left),
    }
    wrong = ", ".join(what for what, is_so in wrongs.items() if is_so)
    if not wrong:
        return after_s, ""
    failures = [line for line in said if "failed" in line][:3] or errors[-300:]
    return after_s, f"{wrong}: `{fault.options}`, expected {fault.told!a}, said {failures!a}"


def lines(count: int) -> Iterator[str]:
    """Yield the section, of so many faults."""
    with ExitStack() as stack:
        places = list(PLACES)
        try:
            stack.enter_context(starter(places[-1]))
        except NotAllowed as error:
            yield f"No nodes of torchrun here: {error}."
            places.pop()
    kinds = [(place, kind) for place in places for kind in kinds_of(place) * (1 if place.is_under_torchrun else 2)]
    random.Random(SEED).shuffle(kinds)
    shared = set(SHARED_MEMORY.iterdir())
    load_torch()

    def tried(index: int) -> tuple[float | None, str]:
        place, kind = kinds[index % len(kinds)]
        return outcome_of(kind, place, random.Random(f"{SEED} {index}"))

    outcomes = worked_off(tried, count, NUM_WORKERS)
    yield f"1F1B, {NUM_RANKS} ranks, {NUM_MICROBATCHES} micro-batches, --timeout {TIMEOUT_S:g}, {NUM_WORKERS} runs at a"
    yield "time. Seconds are from the fault, as /proc shows it, until no process of the run is left; under torchrun no"
    yield "rank: when its agents end is its own. Commands are forked from a process that has imported torch. Nodes are"
    yield f"network namespaces, joined by a link of {BANDWIDTH_BYTES_PER_S / 1e6:g} MB/s. The cache of torch and the"
    yield "logs of torchrun may stay."
    yield ""
    yield "| where | fault | times | as promised | over after, median | at most |"
    yield "|---|---|---|---|---|---|"
    wrongs = []
    for place, kind in [(where, kind) for where in places for kind in kinds_of(where)]:
        results = [outcome for i, outcome in enumerate(outcomes) if kinds[i % len(kinds)] == (place, kind)]
        seconds = sorted(after_s for after_s, _ in results if after_s is not None and not place.is_one_process)
        cells = (f"{seconds[len(seconds) // 2]:.2f} s | {seconds[-1]:.2f} s") if seconds else "- | -"
        yield f"| {place.name} | {kind} | {len(results)} | {sum(not wrong for _, wrong in results)} | {cells} |"
        wrongs += [f"- {place.name}, {kind}: {wrong}" for _, wrong in results if wrong]
    yield ""
    sleep(1)
    yield f"As promised: {count - len(wrongs)} of {count}. New in {SHARED_MEMORY}: {_new(shared) or 'nothing'}."
    yield from wrongs[:SHOWN]


def _new(before: set[Path]) -> str:
    return ", ".join(path.name for path in sorted(set(SHARED_MEMORY.iterdir()) - before))


ROW = Row(
    title="R3: ranks and launchers that fail",
    goal="the right rank and op named; over 2 s after a death, 2 s after the time-out of a standstill; nothing left",
    count=200,
    lines=lines,
)
