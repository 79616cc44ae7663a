"""Every evaluator of time and memory against SimPy, feature by feature: equal, or refused with a reason.

Each row is a feature, each column an evaluator: ``=`` equal within 1e-9, ``-`` refused, ``~`` said without being exact.
The array engine has no column: both of its loops, plain and compiled, have to say of every feature what SimPy says,
span by span.
The bound of the planner, which is asked for candidates, is at most what SimPy says of the candidate's own lists.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles.clusters import Cluster, Device, Link, flat, of_nodes
from pipesched.profiles.costs import Compression, SharingPrice, StageCost, StageCosts
from pipesched.schedules import repeat
from pipesched.schedules.builders import build
from pipesched.schedules.builders.avgpipe import avgpipe, one_pipeline
from pipesched.schedules.columns import machine_code
from pipesched.schedules.lowering import lower, lower_for_torch
from pipesched.schedules.ops import Average, WorkOp
from pipesched.schedules.transforms import recompute, replicate, training_run, with_step_barrier, with_steps
from pipesched.simulator import USUAL_NETWORK, Estimate, Inexact, Meaning, NetworkOptions, Precision, Scenario
from pipesched.simulator.analysis import usage
from pipesched.simulator.engine import OpSeconds, lists_of_all, obstacle_of_several, predict_by_events, simulate_lists
from pipesched.simulator.fast import (
    EqualPipelines,
    RepeatedRuns,
    UnflushedRuns,
    contention_of,
    predict_drifting,
    predict_scenario,
    run_time,
    simulate_arrays,
)
from pipesched.simulator.planner.bound import Bounds
from pipesched.simulator.planner.candidate_evaluation import lists_of_candidate, predict_candidate
from pipesched.simulator.search import Setting
from pipesched.simulator.tuner import Evaluator, predict_setting, profile_setting, search_settings, tuned
from pipesched.simulator.tuner.setting_evaluation import evaluate_setting
from tests.properties import examples, thinned
from tests.simulator.fast.timelines import assert_same_timeline, without_simpy
from tests.simulator.tuner.problems import problem as model_problem
from tests.strategies import random_cluster, random_costs

LINK = Link(0.125, 50.0)
NODES = of_nodes(replace(flat(2, LINK), inter=Link(0.25, 20.0)), 2)
NICS = of_nodes(replace(flat(2, LINK), inter=Link(0.25, 20.0), nics=((0, 1),)), 2)
UNEQUAL = Cluster((Device(1.0), Device(0.5), Device(2.0), Device(0.75)), LINK, links=((1, 2, Link(1.0, 10.0)),))


def costs_of(schedule, **changes):
    """Unequal stages that say everything; utilisations are 1 unless they are given."""
    chance, working = random.Random(schedule.num_stages), random.Random(0)
    stages = tuple(
        StageCost(
            chance.uniform(0.5, 2),
            chance.uniform(1, 4),
            chance.uniform(0.5, 2),
            chance.uniform(0.5, 2),
            step_s=chance.uniform(0.1, 1),
            output_bytes=chance.randint(1, 40),
            saved_bytes=chance.randint(1, 100),
            weight_bytes=chance.randint(1, 100),
            optimizer_bytes=chance.randint(1, 100),
            working_bytes=working.randint(1, 200),
            **({"copy_s": 0.5, "predict_s": 0.75, "average_s": 0.25} | changes),
        )
        for _ in range(schedule.num_stages)
    )
    return StageCosts(stages)


def scenario(schedule, cluster=None, num_pipelines=1, network=USUAL_NETWORK, costs=None, **changes):
    costs = costs_of(schedule) if costs is None else costs
    cluster = flat(max(schedule.rank_to_device) + 1, LINK) if cluster is None else cluster
    return Scenario(schedule, replace(costs, **changes), cluster, network, num_pipelines)


def pipelines(number, utilisation=1.0, **changes):
    schedule = one_pipeline(3, 4, 2, 1)
    return scenario(schedule, num_pipelines=number, costs=costs_of(schedule, utilisation=utilisation), **changes)


def network(*values, cluster=NODES, **named):
    return scenario(build("1f1b", 4, 4), cluster, network=NetworkOptions(*values, **named))


HALF = Compression(4, 100.0)
KEPT = replace(LINK, send_s=0.11, send_s_per_byte=0.003, post_s=0.07, receive_s=0.05, receive_s_per_byte=0.002)
HANDED = replace(flat(4, KEPT), devices=(Device(op_s=0.03),) * 4)
HANDED_UNEQUALLY = replace(UNEQUAL, intra=KEPT, links=((1, 2, replace(KEPT, latency_s=1.0, post_s=0.0)),))
GATHERED = lower_for_torch(build("interleaved", 2, 4))
UNUSED = [StageCost(9.0, 9.0)]

# lockstep is asked for one pipeline too, and drifting for its first iteration; then the pace of the repeated batch, and
# AvgPipe's equations
MATRIX = {
    "whole backward": ("= = = ~", lambda: scenario(build("1f1b", 4, 6))),
    "split backward": ("= = = -", lambda: scenario(build("zb_h1", 4, 6))),
    "backwards whole and split": ("= - = -", lambda: scenario(build("dualpipe", 4, 8))),
    "recompute": ("= = = -", lambda: scenario(recompute(build("gpipe", 3, 4)))),
    "several stages of a rank": ("= = = -", lambda: scenario(build("interleaved", 2, 4))),
    "a V of stages": ("= = = -", lambda: scenario(build("zbv", 2, 4))),
    "overlap, none of it hidden": ("= = = -", lambda: scenario(build("dualpipe_v", 2, 4), overlap=0.0)),
    "overlap, half of it hidden": ("= = = -", lambda: scenario(build("dualpipe_v", 2, 4), overlap=0.5)),
    "overlap, all of it hidden": ("= - = -", lambda: scenario(build("dualpipe", 4, 8), overlap=1.0)),
    "gathered weights": ("= - = -", lambda: scenario(GATHERED, costs=costs_of(GATHERED, unshard_s=0.6))),
    "gathered weights, handing over": (
        "= - = -",
        lambda: scenario(
            GATHERED, replace(HANDED, devices=HANDED.devices[:2]), costs=costs_of(GATHERED, unshard_s=0.6)
        ),
    ),
    "compression": ("= = = ~", lambda: scenario(build("1f1b", 3, 4), compression=HALF)),
    "stashed weights": ("= = = -", lambda: scenario(build("pipedream", 3, 6))),
    "predicted weights": ("= = = -", lambda: scenario(build("spectrain", 3, 6))),
    "messages that take no time": ("= = = ~", lambda: scenario(build("1f1b", 3, 4), flat(3))),
    "unequal devices and links": ("= = = ~", lambda: scenario(build("1f1b", 4, 4), UNEQUAL)),
    "costs of further stages": (
        "= = = ~",
        lambda: scenario(
            build("1f1b", 3, 4),
            costs=StageCosts((*costs_of(build("1f1b", 3, 4)).stages, *UNUSED)),
        ),
    ),
    "handing over": ("= = = ~", lambda: scenario(build("1f1b", 4, 6), HANDED)),
    "handing over, split backward": ("= = - -", lambda: scenario(build("zb_h1", 4, 6), HANDED)),
    "handing over, several stages of a rank": ("= = = -", lambda: scenario(build("interleaved", 2, 4), HANDED)),
    "handing over, unequal devices and links": ("= = = ~", lambda: scenario(build("1f1b", 4, 4), HANDED_UNEQUALLY)),
    "handing over, overlap": ("= = - -", lambda: scenario(build("dualpipe_v", 2, 4), HANDED, overlap=0.5)),
    "handing over beside reductions": ("= - = -", lambda: scenario(build("chimera", 4, 8), HANDED)),
    "handing over, one pipeline with an average": ("= = = ~", lambda: pipelines(1, cluster=HANDED)),
    "handing over, two pipelines": ("= = - ~", lambda: pipelines(2, 0.75, cluster=HANDED)),
    "handing over, three pipelines that do not slow each other": (
        "= = - ~",
        lambda: pipelines(3, 0.25, cluster=HANDED),
    ),
    "handing over, blocking": ("= = = -", lambda: network("rendezvous", "blocking", cluster=HANDED)),
    "handing over on a shared device": ("- = = -", lambda: scenario(avgpipe(2, 8, 2, 1), HANDED)),
    "two nodes": ("= = = ~", lambda: scenario(build("1f1b", 4, 4), NODES)),
    "shared NICs": ("= = = ~", lambda: scenario(build("1f1b", 4, 4), NICS)),
    "reductions of replicas": ("= - = -", lambda: scenario(replicate(lower(build("1f1b", 2, 4)), 2), flat(4, LINK))),
    "reductions beside messages": ("= - = -", lambda: scenario(build("chimera", 4, 8))),
    "reductions through shared NICs": ("= - = -", lambda: scenario(replicate(lower(build("1f1b", 2, 4)), 2), NICS)),
    "a barrier before the steps": ("= - = ~", lambda: scenario(with_step_barrier(build("1f1b", 4, 6)))),
    "a barrier, several stages of a rank": ("= - = -", lambda: scenario(with_step_barrier(build("zbv", 2, 4)))),
    "a barrier behind reductions": (
        "= - = -",
        lambda: scenario(with_step_barrier(replicate(build("chimera", 4, 8), 2)), flat(8, LINK)),
    ),
    "a barrier, handing over": ("= - = ~", lambda: scenario(with_step_barrier(build("1f1b", 4, 6)), HANDED)),
    "ranks that share a device": ("- = = -", lambda: scenario(avgpipe(2, 8, 2, 1))),
    "one pipeline with an average": ("= = = ~", lambda: pipelines(1)),
    "two pipelines that slow each other": ("= = - ~", lambda: pipelines(2, 0.75)),
    "three pipelines that do not": ("= = - ~", lambda: pipelines(3, 0.25)),
    "two pipelines, compression": ("= = - ~", lambda: pipelines(2, 0.8, compression=HALF)),
    "two pipelines on unequal devices": ("= = - ~", lambda: pipelines(2, 0.75, cluster=UNEQUAL)),
    "two pipelines, stashed weights": (
        "= = - -",
        lambda: scenario(
            build("pipedream", 2, 4), num_pipelines=2, costs=costs_of(build("pipedream", 2, 4), utilisation=0.75)
        ),
    ),
    "two pipelines, overlap": (
        "= = - -",
        lambda: scenario(
            build("dualpipe_v", 2, 4),
            num_pipelines=2,
            costs=costs_of(build("dualpipe_v", 2, 4), utilisation=0.75),
            overlap=0.5,
        ),
    ),
    "two pipelines, unlike stages of a rank": (
        "= = - -",
        lambda: scenario(
            build("interleaved", 2, 4),
            num_pipelines=2,
            costs=StageCosts(
                tuple(
                    replace(cost, utilisation=0.4 + 0.1 * stage)
                    for stage, cost in enumerate(costs_of(build("interleaved", 2, 4)).stages)
                )
            ),
        ),
    ),
    "two pipelines, shared NICs": ("- = - ~", lambda: pipelines(2, 0.75, cluster=NICS)),
    "two pipelines, eager": ("- = - -", lambda: pipelines(2, 0.75, network=NetworkOptions("eager"))),
    "eager": ("= = = -", lambda: network("eager")),
    "blocking": ("= = = -", lambda: network("rendezvous", "blocking")),
    "slowdown": ("= = = -", lambda: network(slowdown=0.5)),
    "chunks without shared NICs": ("= = = ~", lambda: network(chunk_bytes=5)),
    "chunks through shared NICs": ("= = = ~", lambda: network(chunk_bytes=5, cluster=NICS)),
}


def first_iteration(asked):
    """What pipelines that drift take for an iteration that all begin together."""
    answer = predict_drifting(asked)
    if isinstance(answer, Inexact):
        return answer
    assert answer.meaning is Meaning.PACE
    lists = lists_of_all(asked.schedule, 1) if asked.num_pipelines == 1 else lower(asked.schedule)
    several = EqualPipelines(lists, asked.costs, asked.cluster, asked.network)
    ends_s = several.ends_s(asked.num_pipelines)
    # an iteration there ends when the rank comes to the next one; of lists that end with an Average that is at once
    next_s = 0.0 if isinstance(lists.ops[0][-1], Average) else asked.cluster.devices[0].op_s
    return Estimate(Meaning.ITERATION, max(end_s for (end_s,) in ends_s) - next_s, {})


def in_lockstep(asked):
    """What one of several equal pipelines says of all of them, where each shares nothing but with the others."""
    reason = contention_of(asked) or obstacle_of_several(asked)
    if reason is None and asked.schedule.pipelines > 1:
        reason = "got lists of several pipelines, expected those of one"
    if reason is not None:
        return Inexact(reason)
    return EqualPipelines(asked.schedule, asked.costs, asked.cluster, asked.network).together(asked.num_pipelines)


EVALUATORS = (in_lockstep, first_iteration)


@pytest.mark.parametrize("feature", MATRIX)
@pytest.mark.parametrize("column", range(len(EVALUATORS)), ids=[evaluator.__name__ for evaluator in EVALUATORS])
def test_an_evaluator_says_what_simpy_says_or_why_it_cannot(feature, column):
    signs, make = MATRIX[feature]
    asked = make()
    answer, expected = EVALUATORS[column](asked), predict_by_events(asked)
    if signs.split()[column] == "-":
        assert isinstance(answer, Inexact)
        assert "expected" in answer.reason
        return
    assert isinstance(answer, Estimate)
    assert answer.seconds == pytest.approx(expected.seconds, rel=1e-9)
    if answer.peak_bytes:
        assert answer.peak_bytes == expected.peak_bytes


def runs_in_lockstep(feature):
    """Whether three pipelines of a feature share nothing but with each other."""
    signs, make = MATRIX[feature]
    asked = make()
    return signs.startswith("=") and not asked.schedule.summands and not contention_of(replace(asked, num_pipelines=3))


@pytest.mark.slow
@pytest.mark.parametrize("feature", [*filter(runs_in_lockstep, MATRIX)])
def test_one_program_says_of_three_pipelines_what_simpy_says(feature):
    asked = MATRIX[feature][1]()
    single = EqualPipelines(asked.schedule, asked.costs, asked.cluster, asked.network)
    answer, expected = single.together(3), predict_by_events(replace(asked, num_pipelines=3))
    assert answer.meaning is expected.meaning
    assert answer.seconds == pytest.approx(expected.seconds, rel=1e-9)
    assert answer.peak_bytes == expected.peak_bytes


@pytest.mark.parametrize("feature", MATRIX)
def test_lists_whose_ops_take_what_they_took_end_when_they_ended(feature):
    """Also on shared devices: a work that is given its seconds is slowed by nobody."""
    asked = MATRIX[feature][1]()
    timeline, lists = predict_by_events(asked).timeline, lists_of_all(asked.schedule, asked.num_pipelines)
    rows = [timeline.of_rank(rank) for rank in range(lists.num_ranks)]
    works = [[span.end_s - span.start_s if isinstance(span.op, WorkOp) else None for span in row] for row in rows]
    given_s = [[OpSeconds(work_s=work_s) for work_s in row] for row in works]
    replayed = simulate_lists(lists, asked.costs, asked.cluster, network=asked.network, given=given_s)
    assert replayed.makespan_s == pytest.approx(timeline.makespan_s, rel=1e-9)


@pytest.mark.parametrize("loop", ["plain", "numba"])
@pytest.mark.parametrize("feature", MATRIX)
def test_the_array_engine_says_what_simpy_says(feature, loop, monkeypatch):
    monkeypatch.setattr(machine_code, "BREAK_EVEN", 10**12 if loop == "plain" else 0)
    asked = MATRIX[feature][1]()
    expected = predict_by_events(asked)
    without_simpy(monkeypatch)
    answer = predict_scenario(asked)
    assert_same_timeline(answer.timeline, expected.timeline)
    assert answer.peak_bytes == expected.peak_bytes


@pytest.mark.parametrize("feature", MATRIX)
def test_so_it_does_of_seconds_that_scatter(feature, monkeypatch):
    asked = MATRIX[feature][1]()
    lists = lower(lists_of_all(asked.schedule, asked.num_pipelines))
    where, options = (lists, asked.costs, asked.cluster), {"network": asked.network, "jitter": 0.5, "seed": 3}
    expected = simulate_lists(*where, **options)
    without_simpy(monkeypatch)
    assert_same_timeline(simulate_arrays(*where, **options), expected)


@pytest.mark.parametrize("feature", MATRIX)
def test_what_takes_a_device_over_its_memory_is_the_same(feature):
    asked = MATRIX[feature][1]()
    most = max(predict_by_events(asked).peak_bytes.values())
    devices = tuple(replace(device, memory_bytes=most - 1) for device in asked.cluster.devices)
    tight = replace(asked, cluster=replace(asked.cluster, devices=devices))
    assert predict_scenario(asked).over_memory is None
    assert f"of {most - 1} " in (predict_scenario(tight).over_memory or "")
    assert f"of {most - 1} " in (predict_by_events(tight).over_memory or "")


def nudged(costs, chance):
    """Costs as near as sums are rounded: what is taken and given back at one instant may be apart by as much."""
    stages = (
        replace(
            cost,
            **{
                name: getattr(cost, name) * (1 + chance.uniform(-1e-12, 1e-12))
                for name in ("forward_s", "backward_s", "backward_input_s", "backward_weight_s")
            },
        )
        for cost in costs.stages
    )
    return replace(costs, stages=tuple(stages))


@examples(40)
@given(
    name=st.sampled_from(
        ("1f1b", "zb_h2", "interleaved", "looped_bfs", "chimera", "hanayo", "dualpipe_v", "v_min", "xpipe")
    ),
    number=st.integers(1, 3),
    is_recomputed=st.booleans(),
    convert_bytes_per_s=st.sampled_from([None, 50.0]),
    seed=st.integers(0, 10**6),
)
def test_whatever_the_costs_are_those_that_answer_agree(name, number, is_recomputed, convert_bytes_per_s, seed):
    chance = random.Random(seed)
    schedule = build(name, 4, 8)
    schedule = recompute(schedule) if is_recomputed else schedule
    costs = replace(random_costs(chance, schedule.num_stages), compression=Compression(4, convert_bytes_per_s))
    asked = Scenario(schedule, costs, random_cluster(chance, 4), num_pipelines=number)
    expected = predict_by_events(asked)
    answer = in_lockstep(asked)
    if isinstance(answer, Estimate):
        assert answer.seconds == pytest.approx(expected.seconds, rel=1e-9)
        near = [in_lockstep(replace(asked, costs=nudged(costs, chance))) for _ in range(40 if number > 1 else 0)]
        for device, peak in expected.peak_bytes.items():
            assert peak in {said.peak_bytes[device] for said in (answer, *near)}
    assert isinstance(answer, Estimate if number == 1 or not schedule.reducers else Inexact)


@pytest.mark.slow
@pytest.mark.parametrize("feature", MATRIX)
def test_a_repeated_batch_follows_at_the_pace_of_ever_longer_runs(feature):
    signs, make = MATRIX[feature]
    asked = make()
    answer = RepeatedRuns(asked.schedule).predict(asked)
    if signs.split()[2] == "-":
        assert isinstance(answer, Inexact)
        assert "expected" in answer.reason
        return
    batch = with_steps(asked.schedule)
    short, long = (predict_by_events(replace(asked, schedule=repeat(batch, times).held())).seconds for times in (6, 10))
    assert answer.meaning is Meaning.PACE
    assert answer.seconds == pytest.approx((long - short) / 4, rel=1e-9)


DRIFTING = [feature for feature, (signs, make) in MATRIX.items()
            if signs.split()[1] == "=" and make().num_pipelines > 1]  # fmt: skip


def pace_s(lists, asked):
    """The pace at which SimPy goes on with lists of several pipelines whose ops vary, so that they drift apart."""
    short, long = (
        simulate_lists(
            repeat(lists, times).held(), asked.costs, asked.cluster, network=asked.network, jitter=0.05, seed=1
        ).makespan_s
        for times in (12, 24)
    )
    return (long - short) / 12


@pytest.mark.parametrize("feature", DRIFTING)
def test_drifting_pipelines_have_the_pace_of_a_long_run(feature):
    asked = MATRIX[feature][1]()
    answer = predict_drifting(asked)
    assert answer.meaning is Meaning.PACE
    assert answer.seconds == pytest.approx(pace_s(lists_of_all(asked.schedule, asked.num_pipelines), asked), rel=0.02)


CONDITIONS = {
    "usual": {"cluster": flat(4, LINK)},
    "two nodes": {"cluster": NODES},
    "shared NICs": {"cluster": NICS},
    "unequal devices and links": {"cluster": UNEQUAL},
    "handing over": {"cluster": HANDED},
    "handing over, unequal devices and links": {"cluster": HANDED_UNEQUALLY},
    "eager": {"cluster": NODES, "network": NetworkOptions("eager")},
    "blocking": {"cluster": NODES, "network": NetworkOptions("rendezvous", "blocking")},
    "slowdown": {"cluster": NODES, "network": NetworkOptions(slowdown=0.5)},
    "chunks through shared NICs": {"cluster": NICS, "network": NetworkOptions(chunk_bytes=5)},
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "feature"), thinned(["pipedream", "wpipe"], CONDITIONS))
def test_a_run_without_a_flush_has_the_pace_of_ever_longer_runs(name, feature):
    def longer(times):
        return build(name, 4, 8 * times)

    asked = scenario(longer(1), **CONDITIONS[feature], compression=HALF)
    short, long = (predict_by_events(replace(asked, schedule=longer(times))).seconds for times in (8, 16))
    answer = UnflushedRuns(asked.schedule, longer).predict(asked)
    assert answer.meaning is Meaning.PACE
    assert answer.seconds == pytest.approx((long - short) / 8, rel=1e-9)
    assert "expected one" in UnflushedRuns(asked.schedule, longer).predict(replace(asked, num_pipelines=2)).reason


@pytest.mark.slow
@pytest.mark.parametrize(("name", "feature"), thinned(["1f1b", "pipedream"], CONDITIONS))
def test_a_training_run_takes_what_simpy_says_of_all_its_steps(name, feature):
    num_steps = {"1f1b": 36, "pipedream": 72}[name]
    run = training_run(name, 4, 4, num_steps)

    def first_steps(steps):
        return scenario(run.lists(steps), **CONDITIONS[feature], compression=HALF)

    answer, whole = run_time(first_steps, num_steps, run.microbatches_per_step), first_steps(num_steps)
    expected = predict_by_events(replace(whole, schedule=whole.schedule.held()))
    assert answer.makespan_s == pytest.approx(expected.seconds, rel=1e-3)
    assert len(answer.known_s) < num_steps


SETTINGS = {
    "one pipeline": tuned("avgpipe", 4, 4, 1, 0),
    "one pipeline, recompute": tuned("avgpipe", 4, 4, 1, 2, recompute_when="early"),
    "one pipeline, late recompute": tuned("avgpipe", 4, 4, 1, 2, recompute_when="late"),
    "reductions beside messages": tuned("chimera", 4, 4),
    "three pipelines that share links alone": tuned("avgpipe", 4, 8, 3, 1),
    "three pipelines that share devices too": tuned("avgpipe", 4, 2, 3, 1, recompute_when="early"),
}


@pytest.mark.parametrize(("name", "feature"), thinned(SETTINGS, CONDITIONS))
def test_the_tuner_says_what_simpy_says_of_an_iteration_or_of_the_pace_of_pipelines_that_drift(name, feature):
    setting, problem = SETTINGS[name], replace(model_problem(num_devices=4), **CONDITIONS[feature])
    lists = lower(setting.build())
    asked = Scenario(lists, problem.costs(setting), **CONDITIONS[feature])
    outcome, expected = evaluate_setting(problem, setting), predict_by_events(asked)
    drifts = setting.num_pipelines > 1  # all links here take time
    seconds = outcome.seconds * setting.num_pipelines
    if drifts:  # where messages go in another way, SimPy's own seeds lie 5 % apart
        assert seconds == pytest.approx(pace_s(lists, asked), rel=0.02 if asked.network == USUAL_NETWORK else 0.04)
    else:
        assert seconds == pytest.approx(expected.seconds, rel=1e-9)
    assert outcome.held_bytes == max(expected.peak_bytes.values())


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_pipelines_on_shared_cores_take_as_long_as_on_devices_slower_by_the_price(setting):
    """A price of 1.3 for three of them is a speed of 1 / 1.3, for the iteration, the pace and the equations."""
    problem = replace(model_problem(num_devices=4), cluster=flat(4))
    priced = replace(problem, profile=replace(problem.profile, sharing=(SharingPrice(3, (1.3,) * 11),)))
    speed = 1 / 1.3 if setting.num_pipelines == 3 else 1.0
    slower = replace(problem, cluster=Cluster((Device(speed),) * 4))
    outcome, expected = evaluate_setting(priced, setting), evaluate_setting(slower, setting)
    assert outcome.seconds == pytest.approx(expected.seconds, rel=1e-9)
    assert outcome.held_bytes == expected.held_bytes
    lists = lower(setting.build())
    costs = priced.costs(setting)
    by_events = [
        predict_by_events(Scenario(lists, costs, problem.cluster)),
        predict_by_events(Scenario(lists, slower.costs(setting), slower.cluster)),
    ]
    assert by_events[0].seconds == pytest.approx(by_events[1].seconds, rel=1e-9)
    if setting.advance is not None:
        said, wanted = (search_settings(asked, [setting], Evaluator.AVGPIPE)[0] for asked in (priced, slower))
        assert said.seconds == pytest.approx(wanted.seconds, rel=1e-9)


@pytest.mark.parametrize("feature", MATRIX)
def test_the_equations_say_what_they_start_from_or_why_they_cannot(feature):
    signs, make = MATRIX[feature]
    asked = make()
    expected = predict_by_events(asked)
    if signs.split()[3] == "-":  # the equations do not cover the scenario
        return
    profile = profile_setting(expected.timeline, asked.costs, asked.num_pipelines)
    answer = predict_setting(profile, asked.schedule.num_microbatches, asked.num_pipelines)
    busy_s = max(use.busy_s for use in usage(expected.timeline))
    assert asked.num_pipelines * answer.seconds >= busy_s * (1 - 1e-9)
    if asked.num_pipelines == 1:  # of several, the reference model and the updates are counted otherwise
        assert {index: round(device.held_bytes) for index, device in enumerate(answer.devices)} == expected.peak_bytes


def test_pipelines_that_reduce_are_refused_by_everybody():
    asked = scenario(build("chimera", 2, 4), num_pipelines=2)
    for evaluate in (predict_by_events, *EVALUATORS):
        assert isinstance(evaluate(asked), Inexact)


def test_lists_of_several_pipelines_keep_their_averages():
    asked = scenario(avgpipe(2, 8, 2, 1))
    prediction = predict_scenario(asked)
    assert prediction.seconds == simulate_lists(asked.schedule, asked.costs, asked.cluster).makespan_s
    assert any(isinstance(span.op, Average) for span in prediction.timeline.spans)
    for evaluate in (predict_by_events, *EVALUATORS):
        assert isinstance(evaluate(replace(asked, num_pipelines=2)), Inexact)


def test_lists_of_all_are_those_of_avgpipe():
    assert lists_of_all(one_pipeline(3, 4, 2, 1), 2).ops == lower(avgpipe(3, 8, 2, 1)).ops
    alone = lists_of_all(one_pipeline(3, 4, 2, 1), 1)
    assert not any(isinstance(op, Average) for row in alone.ops for op in row)


CANDIDATES = {
    "whole backward": ("1f1b", {}),
    "split backward": ("zb_h1", {}),
    "gpipe": ("gpipe", {}),
    "recompute": ("1f1b", {"recompute_when": "early"}),
    "late recompute": ("1f1b", {"recompute_when": "late"}),
    "late recompute before I": ("zb_h1", {"recompute_when": "late"}),
    "several stages of a rank": ("interleaved", {"num_chunks": 2}),
    "overlap": ("dualpipe", {}),
    "overlap in a V": ("dualpipe_v", {"num_chunks": 2}),
    "replicas": ("1f1b", {"width": 2, "num_ranks": 2}),
    "replicas of rows": ("gpipe", {"width": 2, "num_ranks": 2, "placement": "data"}),
    "chimera": ("chimera", {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("feature", CANDIDATES)
def test_a_bound_is_never_above_what_simpy_says(feature, place):
    """Each feature meets three conditions, all conditions are met, with overlap and compression and without."""
    condition = [*CONDITIONS][([*CANDIDATES].index(feature) + 3 * place) % len(CONDITIONS)]
    overlap, compression = [(0.0, None), (1.0, HALF), (1.0, None)][place]
    name, fields = CANDIDATES[feature]
    depth = fields.get("num_ranks", 4)
    num_stages = depth * {"interleaved": 2, "dualpipe_v": 2}.get(name, 1)
    candidate = Setting(name, **({"num_ranks": 4} | fields), num_microbatches=8, microbatch_size=1,
                        partition=(1,) * num_stages)  # fmt: skip
    costs = replace(costs_of(build("1f1b", num_stages, 8)), overlap=overlap, compression=compression)
    asked = Scenario(lists_of_candidate(candidate, costs), costs, **CONDITIONS[condition])
    cluster, network = asked.cluster, asked.network
    answer, expected = predict_candidate(candidate, costs, cluster, network), predict_by_events(asked)
    assert (answer.meaning, answer.precision) == (expected.meaning, Precision.EXACT)
    assert answer.seconds == pytest.approx(expected.seconds, rel=1e-9)
    assert answer.peak_bytes == expected.peak_bytes
    least = Bounds(cluster).of(candidate, costs)
    assert least.precision is Precision.BOUND
    assert least.meaning is expected.meaning
    assert least.seconds <= expected.seconds * (1 + 1e-9)
    assert all(num_bytes <= expected.peak_bytes[device] for device, num_bytes in least.peak_bytes.items())
