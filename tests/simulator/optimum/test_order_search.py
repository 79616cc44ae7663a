"""The least time of a schedule's ops in any order: closed forms, all orders of a small batch, and never above a run."""

import random
from itertools import permutations, product

import pytest

from pipesched.profiles.clusters import Cluster as Machines
from pipesched.profiles.clusters import Device, Link, flat
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules import Schedule, make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.check import find_faults
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Overlap, Phase
from pipesched.schedules.transforms import recompute
from pipesched.simulator import SimulationError
from pipesched.simulator.fast import simulate_arrays
from pipesched.simulator.memory import peaks_in_flight
from pipesched.simulator.optimum import (
    OrderProof,
    OrderRequest,
    counted_room,
    known_orders,
    least_ticks,
    most_in_flight,
    objective_ticks,
    order_problem,
    orderable,
    planned_times,
    schedule_of_times,
    search_order,
)

SPLIT = StageCost(1.0, None, 1.0, 1.0)


def problem_of(schedule: Schedule, costs: StageCosts, cluster=None, most=None):
    """Return the schedule's lists and their order problem, with as many micro-batches in flight as it has."""
    lists = orderable(schedule, costs)
    room = counted_room(lists, costs, most_in_flight(lists, costs) if most is None else most)
    return lists, order_problem(lists, costs, flat(schedule.num_devices) if cluster is None else cluster, room)


def proof_of(problem, starts, bound):
    """Return what `OrderSearcher` proves, in this process."""
    told = []
    starts_found, least = search_order(OrderRequest(problem, starts, bound, 120.0, 1), lambda *news: told.append(news))
    ticks = objective_ticks(problem, starts_found)
    assert told[0] == (objective_ticks(problem, starts), bound, None)
    assert told == sorted(told, key=lambda news: (-news[0], news[1])), "orders get faster, and bounds closer"
    assert told[-1][:2] == (ticks, least)
    return OrderProof(starts_found, ticks, least)


def proven_s(schedule: Schedule, costs: StageCosts, cluster=None, most=None):
    """Return the makespan of the best order [s], proven to be the least, and its lists."""
    lists, problem = problem_of(schedule, costs, cluster, most)
    start = known_orders(problem, lists, costs)[-1]  # the worst: so there is something to search
    proof = proof_of(problem, start.starts, least_ticks(problem))
    assert proof.ticks == proof.bound
    best = schedule_of_times(problem, lists, proof.starts, "best")
    assert not find_faults(best)
    return proof.bound * problem.tick_s, best


def simulated_s(schedule: Schedule, costs: StageCosts, cluster=None):
    machines = flat(schedule.num_devices) if cluster is None else cluster
    return simulate_arrays(lower(schedule), costs, machines).makespan_s


@pytest.mark.parametrize(("p", "m", "forward_s", "backward_s"), [(2, 3, 1.0, 2.0), (4, 8, 1.0, 1.0), (3, 5, 0.3, 0.7)])
def test_no_order_of_whole_backwards_is_faster_than_1f1b(p, m, forward_s, backward_s):
    """(m + p - 1)(F + B): the last rank waits for (p - 1) F, does m of both, and (p - 1) B come behind."""
    costs = uniform(p, forward_s, backward_s)
    lists, problem = problem_of(build("gpipe", p, m), costs)
    least_s = (m + p - 1) * (forward_s + backward_s)
    assert least_ticks(problem) * problem.tick_s == pytest.approx(least_s, rel=1e-12)
    assert objective_ticks(problem, planned_times(problem)) == least_ticks(problem)
    assert problem.is_exact
    assert known_orders(problem, lists, costs)[0].ticks == least_ticks(problem)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8)])
def test_with_twice_the_memory_only_the_way_to_the_last_rank_is_lost(p, m):
    """(p - 1) F + m (F + I + W): zero bubble, 2 p - 1 micro-batches in flight."""
    costs = StageCosts((SPLIT,) * p)
    _, problem = problem_of(build("zb_h2", p, m), costs)
    assert least_ticks(problem) == p - 1 + 3 * m
    assert objective_ticks(problem, planned_times(problem)) == p - 1 + 3 * m


def all_orders_s(costs, delay_s, is_split, most):
    """Return the least makespan of p = 2, m = 2 over all orders of both ranks that hold at most so many at once."""
    names = ("F0", "F1", *(("I0", "I1", "W0", "W1") if is_split else ("B0", "B1")))
    opens, closes = "F", "W" if is_split else "B"
    allowed = [
        order
        for order in permutations(names)
        if order.index("F0") < order.index("F1")  # which of two like micro-batches comes first is but a name
        and all(order.index(f"F{i}") < order.index(n) for n in names for i in (0, 1) if n[1] == str(i) and n[0] != "F")
        and (not is_split or all(order.index(f"I{i}") < order.index(f"W{i}") for i in (0, 1)))
        and max(sum((n[0] == opens) - (n[0] == closes) for n in order[:i]) for i in range(len(order) + 1)) <= most
    ]
    best_s = float("inf")
    for orders in product(allowed, repeat=2):
        ends, at, free = {}, [0, 0], [0.0, 0.0]
        while moved := [r for r in (0, 1) if at[r] < len(names) and ready(r, orders[r][at[r]], ends)]:
            r = moved[0]
            name = orders[r][at[r]]
            other = (1 - r, name)
            waits = [ends[other] + delay_s] if (name[0], r) in {("F", 1), ("B", 0), ("I", 0)} else []
            free[r] = ends[r, name] = max(free[r], *waits, 0.0) + costs[r][name[0]]
            at[r] += 1
        if len(ends) == 2 * len(names):
            best_s = min(best_s, max(free))
    return best_s


def ready(rank, name, ends):
    return (1 - rank, name) in ends or (name[0], rank) not in {("F", 1), ("B", 0), ("I", 0)}


@pytest.mark.parametrize(("is_split", "most"), [(False, 2), (False, 1), (True, 2), (True, 1)])
def test_the_least_of_two_ranks_and_two_micro_batches_is_that_of_all_orders(is_split, most):
    draw = random.Random(most)
    stages = [{letter: draw.randint(1, 9) / 8 for letter in "FIW"} for _ in range(2)]
    for stage in stages:
        stage["B"] = stage["I"] + stage["W"]
    costs = StageCosts(tuple(StageCost(s["F"], s["B"], s["I"], s["W"]) for s in stages))
    cluster = flat(2, Link(0.25))
    best_s, best = proven_s(build("zb_h1" if is_split else "1f1b", 2, 2), costs, cluster, most)
    assert best_s == all_orders_s(stages, 0.25, is_split, most) == simulated_s(best, costs, cluster)
    assert most_in_flight(best, costs) <= most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cost", "least_s"), [("v_min", SPLIT, 35.0), ("hanayo", StageCost(1.0, 2.0), 60.0)], ids=["block", "moves"]
)
def test_the_planner_finds_a_proven_optimum_and_says_the_same_compiled(name, cost, least_s, monkeypatch):
    """35 chunk times, where V-Min takes 36, by blocks; 60 by moves of single ops."""
    schedule = build(name, 4, 4)
    costs = StageCosts((cost,) * schedule.num_stages)
    lists, problem = problem_of(schedule, costs)
    monkeypatch.setattr("pipesched.simulator.optimum.list_planner._MOST_TRIES", 80)
    monkeypatch.setattr("pipesched.simulator.optimum.list_planner._MOST_MOVES", 2000)
    monkeypatch.setattr("pipesched.simulator.optimum.list_planner._LONGER", 1)
    monkeypatch.setattr("pipesched.schedules.columns.machine_code.BREAK_EVEN", 10**12)
    interpreted = planned_times(problem)
    monkeypatch.setattr("pipesched.schedules.columns.machine_code.BREAK_EVEN", 0)
    assert planned_times(problem) == interpreted
    planned = schedule_of_times(problem, lists, interpreted, "planned")
    assert problem.room.holds(planned)
    assert not find_faults(planned)
    assert simulated_s(planned, costs) == least_s


@pytest.mark.slow
def test_the_planner_is_within_a_hundredth_of_what_cp_sat_has_proven_with_ops_of_unlike_times():
    """Of 18.5 s, where the quick planner is 1.4 % above it."""
    costs = StageCosts((StageCost(0.5, None, 0.5, 0.375),) * 8)
    _, problem = problem_of(build("v_half", 4, 6), costs, most=3.5)
    assert objective_ticks(problem, planned_times(problem)) * problem.tick_s <= 18.5 * 1.01


def proofs(problem, monkeypatch):
    """Return what the simple bound, the bound of both ends, and the optimum are [ticks]."""
    starts, simple = planned_times(problem), least_ticks(problem)
    optimum = proof_of(problem, starts, simple)
    assert optimum.ticks == optimum.bound
    monkeypatch.setattr("pipesched.simulator.optimum.order_model._WHOLE_SHARE", 0.0)
    by_ends = proof_of(problem, starts, simple)
    return simple, by_ends.bound, optimum.ticks


@pytest.mark.slow
@pytest.mark.usefixtures("quick_planner")
def test_both_ends_of_a_batch_bound_it_closer_than_a_rank_alone(monkeypatch):
    assert proofs(problem_of(build("v_min", 3, 4), StageCosts((SPLIT,) * 6))[1], monkeypatch) == (26, 28, 29)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_planner")
def test_the_bound_of_both_ends_is_not_above_the_optimum(monkeypatch):
    draw = random.Random(0)
    kept = {"saved_bytes": 4, "saved_for_weight_bytes": 1, "step_s": 0.5}
    stages = [draw.choices((0.5, 1.0, 1.5, 2.0), k=3) for _ in range(4)]
    costs = StageCosts(tuple(StageCost(f, None, i, w, **kept) for f, i, w in stages))
    simple, by_ends, least = proofs(problem_of(build("v_half", 2, 3), costs, most=1.75)[1], monkeypatch)
    assert simple < by_ends <= least


@pytest.mark.slow
@pytest.mark.usefixtures("quick_planner")
def test_which_stages_recompute_is_chosen_as_well_as_by_trying_all_choices():
    draw = random.Random(7)
    stages = [draw.choices((1.0, 1.5, 2.0), k=3) for _ in range(2)]
    kept = {"saved_bytes": 4, "output_bytes": 1, "saved_for_weight_bytes": 2}
    costs = StageCosts(tuple(StageCost(f, None, i, w, **kept) for f, i, w in stages))
    lists = recompute(orderable(build("zb_h1", 2, 3), costs))
    room = counted_room(lists, costs, 1.25)
    start, least_s = planned_times(order_problem(lists, costs, flat(2), room)), []
    for optional, left_out in (((0, 1), ()), ((), (0, 1)), ((), (0,)), ((), (1,)), ((), ())):
        problem = order_problem(lists, costs, flat(2), room, optional=optional, left_out=left_out)
        starts = start if len(start) == len(problem.kinds) else planned_times(problem)
        proof = proof_of(problem, starts, least_ticks(problem))
        assert proof.ticks == proof.bound
        best = schedule_of_times(problem, lists, proof.starts, "best")
        assert room.holds(best)
        assert not find_faults(best)
        assert simulated_s(best, costs) == proof.ticks * problem.tick_s
        least_s.append(proof.ticks * problem.tick_s)
    assert least_s[0] == min(least_s[1:]) < least_s[-1] < least_s[1], "one stage recomputes"


@pytest.mark.slow
def test_an_order_of_a_v_is_found_that_no_builder_has():
    """29 chunk times in place of V-Half's 31: a search in `test_order_proof` proves that nobody can do it in less."""
    costs, schedule = StageCosts((SPLIT,) * 8), build("v_half", 4, 4)
    lists, problem = problem_of(schedule, costs)
    best = known_orders(problem, lists, costs)[0]
    assert (best.ticks, simulated_s(best.schedule, costs), simulated_s(schedule, costs)) == (29, 29.0, 31.0)
    assert most_in_flight(best.schedule, costs) <= most_in_flight(schedule, costs) == 3


@pytest.mark.usefixtures("quick_planner")
@pytest.mark.parametrize(
    ("name", "p", "m", "chunks"),
    [
        ("gpipe", 3, 4, None),
        ("zb_auto", 3, 5, None),
        ("interleaved", 2, 4, 2),
        ("zbv", 3, 4, None),
        ("v_min", 4, 5, None),
        ("hanayo", 2, 2, None),
    ],
)
def test_what_is_proven_is_never_above_what_takes_place(name, p, m, chunks):
    """Random costs, links that messages share, hand-over, speeds: no whole ticks, and more than the model has."""
    schedule = build(name, p, m, chunks)
    for seed in range(3):
        draw = random.Random(seed)
        seconds = [[draw.random() for _ in "FIW"] for _ in range(schedule.num_stages)]
        step_s = draw.choice([0.0, 0.3])
        kept = {"output_bytes": 9, "saved_bytes": 4, "saved_for_weight_bytes": draw.choice([1, 4, 7])}
        costs = StageCosts(tuple(StageCost(f, None, i, w, step_s=step_s, **kept) for f, i, w in seconds))
        link = Link(draw.random() / 9, 90.0, send_s=draw.choice([0.0, 0.1]))
        cluster = Machines(tuple(Device(speed=draw.uniform(0.5, 2.0)) for _ in range(p)), link)
        lists, problem = problem_of(schedule, costs, cluster)
        assert not problem.is_exact
        bound_s = least_ticks(problem) * problem.tick_s
        for order in known_orders(problem, lists, costs):
            assert order.ticks * problem.tick_s <= simulated_s(order.schedule, costs, cluster) * (1 + 1e-9)
            assert bound_s <= order.ticks * problem.tick_s
            assert not find_faults(order.schedule)
            assert most_in_flight(order.schedule, costs) <= most_in_flight(lists, costs)
            for before, after, ticks, distance, since in problem.arcs:  # what memory says holds in every such list
                ended = [start + problem.kinds[before].ticks + ticks for start in order.starts[before]]
                first = max(since, problem.first(before), problem.first(after) - distance)
                assert all(
                    ended[microbatch] <= order.starts[after][microbatch + distance]
                    for microbatch in range(first, m - distance)
                )


@pytest.mark.parametrize(("name", "chunks"), [("1f1b", None), ("zb_h1", None), ("v_half", None), ("interleaved", 2)])
def test_a_list_holds_what_its_timeline_shows(name, chunks):
    schedule = build(name, 4, 8, chunks)
    costs = StageCosts((StageCost(1.0, None, 1.0, 1.0, saved_bytes=4, saved_for_weight_bytes=1),) * schedule.num_stages)
    timeline = simulate_arrays(lower(schedule), costs, flat(4))
    peaks = peaks_in_flight(timeline, costs, schedule).values()
    assert most_in_flight(schedule, costs) == max(peak.microbatches for peak in peaks)


OVERLAPPING = make_schedule("pair", 1, 2, [[Overlap(Compute(Phase.FORWARD, 0, 0), Compute(Phase.FORWARD, 0, 1))]])


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (build("pipedream", 2, 4), r"got .*@1, expected only F, B, I, W, R and steps"),
        (build("chimera", 2, 4), r"got 0REDUCE_GRAD, expected only F, B, I, W, R and steps"),
        (build("avgpipe", 2, 4), r"got ranks that share a device"),
        (OVERLAPPING, r"got \(0F0;0F1\)OVERLAP_F_B"),
        (make_schedule("short", 1, 2, [[Compute(Phase.FORWARD, 0, 0)]]), "got 0B0 0 times, expected each op once"),
    ],
    ids=["versions", "replicas", "shared", "overlap", "short"],
)
def test_lists_that_cannot_be_ordered_anew_are_refused(schedule, text):
    with pytest.raises(SimulationError, match=text):
        orderable(schedule, uniform(schedule.num_stages, 1.0, 2.0, overlap=0.5))


def test_an_overlap_that_hides_nothing_is_two_ops():
    lists = orderable(build("dualpipe_v", 2, 4), StageCosts((SPLIT,) * 4))
    assert not any(isinstance(op, Overlap) for row in lists.ops for op in row)
    assert not find_faults(lists)
