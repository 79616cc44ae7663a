"""How far a model of handing over closes the gap between measured op times and the measured step: runs, side by side.

    python benchmarks/fidelity.py [--rounds 16] [--out benchmarks/results/fidelity.md]

Every run gives two things: its makespan, and the seconds of its works. The works are put in order again by the
simulator, whose makespan is compared with the run's own: so costs that drift cancel. That is done three times of the
same run, with

    nothing       messages and posting take no time
    links         what `profile-links` measured before
    other run     what a run of GPipe in the same round spent on posting, taking and going from op to op

Rounds follow each other, in each of which all schedules run. A yardstick, a fixed product of matrices, is timed before
every run: by how much it changes the machine has drifted.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import torch
from report import arguments_of, provenance, show

import pipesched
from pipesched.executor.launch import Measure, RunSpec
from pipesched.executor.runs import launch
from pipesched.profiles.clusters import Cluster, flat
from pipesched.profiles.costs import StageCost, StageCosts, costs_of_samples, samples_of
from pipesched.schedules import Schedule, Timeline, occupies_device
from pipesched.schedules.builders import build
from pipesched.schedules.formats import to_json
from pipesched.schedules.lowering import lower
from pipesched.simulator.analysis import readable_bytes, readable_s
from pipesched.simulator.engine import OpSeconds, simulate_lists

WIDTH, MICROBATCH_SIZE, LAYERS = 256, 64, 12
MESSAGE_BYTES = 4 * WIDTH * MICROBATCH_SIZE
SCHEDULES: Mapping[str, dict[str, int]] = {
    "gpipe": {},
    "1f1b": {},
    "interleaved": {"num_chunks": 2},
    "zb_h1": {},
    "pipedream": {},
}
WAYS = ("nothing", "links", "other run")


def run(schedule: Schedule) -> Timeline:
    """Return one iteration, after two that nobody looks at."""
    size = LAYERS // schedule.num_stages
    bounds = tuple((size * stage, size * (stage + 1)) for stage in range(schedule.num_stages))
    job = Measure(schedule=to_json(schedule), microbatch_size=MICROBATCH_SIZE, iterations=1, warmup=2)
    return launch(RunSpec(job=job, model=f"mlp:width={WIDTH},layers={LAYERS}", bounds=bounds)).timeline


def replayed_s(schedule: Schedule, timeline: Timeline, cluster: Cluster) -> float:
    """Return the makespan of the works of `timeline` on machines that hand over as `cluster` says."""
    costs = StageCosts((StageCost(0.0, 0.0, 0.0, 0.0, output_bytes=MESSAGE_BYTES),) * schedule.num_stages)
    given = [
        [
            OpSeconds(work_s=span.end_s - span.start_s) if occupies_device(span.op) else OpSeconds()
            for span in timeline.of_rank(rank)
        ]
        for rank in range(schedule.num_ranks)
    ]
    return simulate_lists(schedule, costs, cluster, given=given).makespan_s


def yardstick_s() -> float:
    """Return what a fixed product of matrices takes, the median of some."""
    a, seconds = torch.ones(256, 256), []
    for _ in range(50):
        start_s = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - start_s)
    return statistics.median(seconds)


def report(rounds: int) -> Iterator[str]:
    """Yield the report line by line, as it comes."""
    schedules = {name: lower(build(name, 2, 8, **options)) for name, options in SCHEDULES.items()}
    yield "# Measured op times and the measured step, with and without handing over"
    yield ""
    yield from provenance(f"fidelity.py --rounds {rounds}", os.getloadavg()[0], "gloo, 2 ranks of 1 thread")
    errors: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    steps_s: defaultdict[str, list[float]] = defaultdict(list)
    works_s: defaultdict[str, list[float]] = defaultdict(list)
    yardsticks_s: list[float] = []
    with pipesched.session():
        links = pipesched.profile_links().cluster
        for _ in range(rounds):
            other = flat(2)
            for name, schedule in schedules.items():
                yardsticks_s.append(yardstick_s())
                timeline = run(schedule)
                if name == "gpipe":
                    samples = samples_of([timeline], [name])
                    other = costs_of_samples(samples, [name], 1).cluster(flat(2).devices)
                steps_s[name].append(timeline.makespan_s)
                works_s[name].append(statistics.median(span.end_s - span.start_s for span in timeline.work))
                for way, cluster in zip(WAYS, (flat(2), links, other), strict=True):
                    error = replayed_s(schedule, timeline, cluster) / timeline.makespan_s - 1
                    errors[name, way].append((timeline.makespan_s, error))
    yield from _circumstances(links, yardsticks_s)
    yield "| schedule | median op | median step | replayed with nothing | with links | with another run's |"
    yield "|---|---|---|---|---|---|"
    for name in schedules:
        cells = [_cell(errors[name, way]) for way in WAYS]
        op, step = readable_s(statistics.median(works_s[name])), readable_s(statistics.median(steps_s[name]))
        yield f"| {name} | {op} | {step} ({readable_s(min(steps_s[name]))} at least) | {' | '.join(cells)} |"
    yield ""
    yield f"Medians of {rounds} rounds, and in brackets of the quarter with the shortest steps, which other programs"
    yield "disturbed least."


def _circumstances(links: Cluster, yardsticks_s: Sequence[float]) -> Iterator[str]:
    """Yield what was sent, what it costs by the measured links, and how much the machine drifted."""
    link, op_s = links.intra, links.devices[0].op_s
    send, receive, way = (
        readable_s(seconds(MESSAGE_BYTES)) for seconds in (link.sending_s, link.receiving_s, link.transfer_s)
    )
    yield f"`mlp:width={WIDTH},layers={LAYERS}`, 8 micro-batches of {MICROBATCH_SIZE}, messages of"
    yield f"{readable_bytes(MESSAGE_BYTES)}. By `profile-links` a Send keeps its rank {send}, a Recv"
    yield f"{readable_s(link.post_s)}, taking the message {receive}, and an op {readable_s(op_s)} besides;"
    low, median, high = min(yardsticks_s), statistics.median(yardsticks_s), max(yardsticks_s)
    yield f"on the way it is {way}. Yardstick: {readable_s(low)} to {readable_s(high)}, median {readable_s(median)}."
    yield ""


def _cell(errors: Sequence[tuple[float, float]]) -> str:
    """Return the median of errors that come with their step times, and that of the quarter with the shortest steps."""
    shortest = sorted(errors)[: max(1, len(errors) // 4)]
    every, undisturbed = (statistics.median(error for _, error in pairs) for pairs in (errors, shortest))
    return f"{every:+.1%} ({undisturbed:+.1%})"


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--rounds", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    show(report(arguments.rounds), arguments.out)


if __name__ == "__main__":
    main()
