"""R3: ranks, launchers and their helper processes are killed, stopped or fail at random ops, over each transport."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from namespaces import NotAllowed, two_nodes

from fault_rows.attempt import Command, attempt
from fault_rows.fault_kinds import NAMED_S, NUM_MICROBATCHES, NUM_RANKS, PLACES, TIMEOUT_S, Place, fault_of, kinds_of
from fault_rows.faulty_run import FaultyRun, Launched, Launcher
from fault_rows.row import Row, Section
from fault_rows.torchrun_agents import Agents
from fault_rows.workers import load_torch, worked_off

BANDWIDTH_BYTES_PER_S = 25e6
NUM_WORKERS = 3
SHOWN = 12
SEED = 3
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 -- looked at, not written to


class Outcome(NamedTuple):
    """The outcome of a fault.

    Attributes:
        named_s: Time from the fault to its report [s]; None without a report.
        after_s: Time from the fault to the end of the run [s]; None if not in time.
        wrong: The violated guarantee, if any.
    """

    named_s: float | None
    after_s: float | None
    wrong: str


@contextmanager
def starter(place: Place) -> Iterator[Callable[[str], Callable[[Path, Mapping[str, str]], Launcher]]]:
    """Yield a function from a command line to the function that starts it.

    Raises:
        NotAllowed: The system refuses the nodes of torchrun.
    """
    if not place.is_under_torchrun:
        generations = 0 if place.is_one_process else 2
        yield lambda line: lambda folder, given: Launched(Command(line.split(), folder, None, given), generations)
        return
    with two_nodes(BANDWIDTH_BYTES_PER_S) as nodes:

        def under_torchrun(line: str) -> Callable[[Path, Mapping[str, str]], Launcher]:
            def start(folder: Path, given: Mapping[str, str]) -> Launcher:
                pins = [] if place.is_training else ["--no-pin"]
                made = attempt([*line.split(), *pins, "--job", "job.json"], folder, limit_s=60)
                if made.exit_code:
                    raise SystemExit(f"faults: {line}: {made.errors}")
                words = ["-m", "pipesched.executor", str(folder / "job.json"), "--trust-model"]
                return Agents(nodes, NUM_RANKS // len(nodes), words, folder, given)

            return start

        yield under_torchrun


def outcome_of(kind: str, place: Place, chance: random.Random, patience: float = 1.0) -> Outcome:
    """Inject a fault into a run; return its outcome.

    Args:
        kind: One of `kinds_of(place)`.
        place: The way to start the ranks.
        chance: Random numbers for the rank, the op and the moment.
        patience: Factor on the promised times, for a busy machine.
    """
    fault = fault_of(kind, place, chance)
    with starter(place) as starting:
        run = FaultyRun(starting(fault.options))
        run.await_ranks(NUM_RANKS * (not place.is_one_process))
        if fault.act:
            if fault.is_early:
                run.await_watches(NUM_RANKS)
            else:
                run.await_work(1 if place.is_one_process else NUM_RANKS)
            sleep(chance.uniform(0, 1))
            run.fault_s = monotonic()
            fault.act(run)
        else:
            run.await_fault()
        end = run.end(patience * fault.limit_s, fault.told)
    expected = 1 if place.is_under_torchrun else fault.exit_code
    said = [line for line in end.errors.splitlines() if not re.search(r": \d+ s(, \d+%)?$", line)]  # how far it is
    named_s, after_s = end.named_s or float("nan"), end.after_s or float("nan")
    wrongs = {
        f"exit code {end.exit_code}, not {expected}": end.exit_code != expected,
        "the expected message is missing": end.named_s is None,
        "more than a line": not place.is_under_torchrun and len(said) > 1,
        f"reported after {named_s:.2f} s": named_s > patience * fault.named_s,
        f"ended after {after_s:.2f} s": not after_s <= patience * fault.limit_s,
        f"left {', '.join(end.left)}": bool(end.left),
    }
    wrong = ", ".join(what for what, is_so in wrongs.items() if is_so)
    if not wrong:
        return Outcome(end.named_s, end.after_s, "")
    failures = [line for line in said if "failed" in line][:3] or end.errors[-300:]
    wrong = f"{wrong}: `{fault.options}`, expected {fault.told!a}, said {failures!a}"
    return Outcome(end.named_s, end.after_s, wrong.replace(f"{Path(__file__).parents[2]}/", ""))


def lines(is_under_torchrun: bool, count: int) -> Section:
    """Yield the section on `count` faults, in runs under torchrun or in runs of a command."""
    places = [place for place in PLACES if place.is_under_torchrun is is_under_torchrun]
    with ExitStack() as stack:
        try:
            stack.enter_context(starter(places[-1]))
        except NotAllowed as error:
            yield f"Not measured, as there are no nodes of torchrun here: {error}."
            return False
    kinds = [(place, kind) for place in places for kind in kinds_of(place)]
    random.Random(SEED).shuffle(kinds)
    shared = set(SHARED_MEMORY.iterdir())
    load_torch()

    def tried(index: int) -> Outcome:
        place, kind = kinds[index % len(kinds)]
        return outcome_of(kind, place, random.Random(f"{SEED} {index}"))

    outcomes = [Outcome(*outcome) for outcome in worked_off(tried, count, NUM_WORKERS)]
    yield f"1F1B, {NUM_RANKS} ranks, {NUM_MICROBATCHES} micro-batches, --timeout {TIMEOUT_S:g}, {NUM_WORKERS} runs at a"
    yield "time. Report: seconds from the fault to the expected message. End: seconds from the fault until no process"
    yield f"of the run is left. A rank's death must be reported within {NAMED_S:g} s. Commands and agents are forked"
    yield "from a process that has imported torch."
    if is_under_torchrun:
        yield "Agents of torchrun may end later than their ranks. Nodes are network namespaces with host names of their"
        yield f"own, joined by a link of {BANDWIDTH_BYTES_PER_S / 1e6:g} MB/s. The cache of torch and the logs of"
        yield "torchrun may stay."
    yield ""
    yield "| command | fault | runs | as promised | report: median | longest | end: median | longest |"
    yield "|---|---|---|---|---|---|---|---|"
    wrongs: list[str] = []
    for place, kind in [(where, kind) for where in places for kind in kinds_of(where)]:
        results = [outcome for i, outcome in enumerate(outcomes) if kinds[i % len(kinds)] == (place, kind)]
        seconds = (_seconds(result.named_s for result in results), _seconds(result.after_s for result in results))
        promised = sum(not result.wrong for result in results)
        yield f"| {place.name} | {kind} | {len(results)} | {promised} | {' | '.join(seconds)} |"
        wrongs += [f"- {place.name}, {kind}: {result.wrong}" for result in results if result.wrong]
    yield ""
    sleep(1)
    left = _new(shared)
    yield f"As promised: {count - len(wrongs)} of {count}. New in {SHARED_MEMORY}: {left or 'nothing'}."
    yield from wrongs[:SHOWN]
    return not (wrongs or left)


def _seconds(values: Iterable[float | None]) -> str:
    """Return the median and the largest value as two cells of the table."""
    known = sorted(value for value in values if value is not None)
    return f"{known[len(known) // 2]:.2f} s | {known[-1]:.2f} s" if known else "- | -"


def _new(before: set[Path]) -> str:
    return ", ".join(path.name for path in sorted(set(SHARED_MEMORY.iterdir()) - before))


GOAL = "the right rank and op named; over 2 s after a death, 2 s after the time-out of a standstill; nothing left"
ROW = Row(title="R3: ranks and launchers that fail", goal=GOAL, count=144, lines=partial(lines, False))
TORCHRUN = Row(title="R3: ranks and agents of torchrun that fail", goal=GOAL, count=56, lines=partial(lines, True))
