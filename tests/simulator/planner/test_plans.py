import random
from dataclasses import replace

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, Device, Link, flat, of_nodes
from pipesched.profiles.io import load_plan, save_json
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import place_copies, with_tied_sum
from pipesched.simulator import NetworkOptions, Scenario
from pipesched.simulator.analysis import critical_path
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import run_time
from pipesched.simulator.planner import reasons, search_plans
from pipesched.simulator.planner.candidate_evaluation import lowered, predict_candidate
from pipesched.simulator.planner.request import Request, candidates
from pipesched.simulator.search import Setting
from tests.profiles.hand_profiles import layer, measurement, profile
from tests.simulator.planner.instances import random_profile, random_request

SLOWLY_JOINED = of_nodes(replace(flat(2, Link(0.0, 1e3)), inter=Link(0.0, 10.0)), 2)


def even(num_layers, sizes=(1, 2, 4), **fields):
    """Equal layers of 3 s per sample."""
    return profile(*(layer(*(measurement(s, 1.0 * s, 2.0 * s, **fields) for s in sizes)) for _ in range(num_layers)))


def ask(**changes):
    usual = {"profile": even(8), "cluster": SLOWLY_JOINED, "batch_size": 16, "recomputes": (None,)}
    return Request(**(usual | changes))


def test_what_is_planned_is_what_runs(tmp_path):
    request = ask(depths=(2,), schedules=("1f1b",))
    best = search_plans(request).ranked[0]
    save_json(request.plan_of(best), tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    lists = lower(plan.run(1).lists(1).held())
    costs = request.cuts().costs(plan.partition, plan.microbatch_size)
    assert simulate_lists(lists, costs, request.cluster).makespan_s == pytest.approx(best.seconds, rel=1e-12)
    assert plan.predicted.throughput == pytest.approx(16 / best.seconds)
    assert plan.run(1).microbatches_per_step * plan.microbatch_size == plan.batch_size == 16


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb_h1", "chimera"])
def test_a_plan_sums_tied_gradients(name, depth):
    request = ask(profile=replace(random_profile(random.Random(5), 9), tied_bytes=300), depths=(depth,),
                  schedules=(name,))  # fmt: skip
    ranked = search_plans(request, top=3).ranked
    assert ranked
    for outcome in ranked:
        plan = request.plan_of(outcome)
        lists = lower(with_tied_sum(plan.run(1).lists(1).held()))
        costs = request.cuts().costs(plan.partition, plan.microbatch_size)
        assert costs.tied_bytes == 300
        assert simulate_lists(lists, costs, request.cluster).makespan_s == pytest.approx(outcome.seconds, rel=1e-12)


def test_a_plan_refuses_tied_stages_that_step_while_micro_batches_are_in_flight():
    request = ask(profile=replace(random_profile(random.Random(5), 9), tied_bytes=300), depths=(2,),
                  schedules=("pipedream", "1f1b"))  # fmt: skip
    assert {outcome.setting.schedule for outcome in search_plans(request, top=9).ranked} == {"1f1b"}
    assert not search_plans(replace(request, schedules=("pipedream",)), top=9).ranked


def test_data_parallelism_of_equal_layers_is_as_fast_as_by_hand():
    node = Cluster((Device(),) * 2, Link(0.0, 1000.0))
    ranking = search_plans(ask(cluster=node, depths=(1,), schedules=("1f1b",), batch_size=4), top=1)
    # 2 samples of 8 layers of 3 s; 64 bytes of gradients summed in two rounds of half of them; 8 steps of 0.5 s
    assert ranking.ranked[0].seconds == pytest.approx(2 * 8 * 3 + 2 * 32 / 1000 + 8 * 0.5)
    assert ranking.ranked[0].parts.reduce_s == pytest.approx(2 * 32 / 1000)


def test_a_pipeline_of_equal_stages_is_as_fast_as_the_closed_form_of_1f1b():
    request = ask(cluster=flat(4), depths=(4,), schedules=("1f1b",), profile=even(8, sizes=(1,)))
    best = search_plans(request).ranked[0]
    assert best.setting.partition == (2, 2, 2, 2)
    assert best.seconds == pytest.approx((16 + 3) * 2 * 3 + 2 * 0.5)
    assert best.parts.bubble_s == pytest.approx(3 * 2 * 3)


def test_large_activations_stay_inside_the_node_and_large_gradients_do_too():
    wide = even(8, output_bytes=400, sizes=(1,))
    best = search_plans(ask(profile=wide, depths=(2,), schedules=("1f1b",))).ranked[0]
    assert best.setting.placement == "pipeline"
    heavy = profile(*(layer(measurement(), weight_bytes=400) for _ in range(8)))
    best = search_plans(ask(profile=heavy, depths=(2,), schedules=("1f1b",))).ranked[0]
    assert best.setting.placement == "data"


def test_slower_devices_get_fewer_layers():
    cluster = replace(flat(2), devices=(Device(1.0), Device(0.5)))
    best = search_plans(ask(profile=even(9), cluster=cluster, depths=(2,), schedules=("gpipe",))).ranked[0]
    assert best.setting.partition == (6, 3)


def test_a_partition_that_is_balanced_by_time_gives_way_to_one_that_fits():
    light, heavy = layer(measurement(1, 1.0, 2.0, saved_bytes=10)), layer(measurement(1, 1.0, 2.0, saved_bytes=200))
    cluster = replace(flat(2), devices=(Device(memory_bytes=1000), Device(memory_bytes=1000)))
    request = ask(
        profile=profile(*[heavy] * 4, *[light] * 4), cluster=cluster, depths=(2,), schedules=("1f1b",), batch_size=4
    )
    best = search_plans(request).ranked[0]
    assert best.setting.partition < (4, 4)
    assert best.held_bytes <= 1000


def test_where_nothing_fits_the_candidate_that_needs_least_is_named():
    cluster = replace(flat(2), devices=(Device(memory_bytes=10),) * 2)
    request = ask(cluster=cluster, schedules=("gpipe", "1f1b"), recomputes=(None, "early"), batch_size=4)
    ranking = search_plans(request)
    assert not ranking.ranked
    known = [outcome for outcome in ranking.rejected if outcome.seconds is not None]
    least = min(
        max(predict_candidate(c, request.cuts().costs_of(c), cluster).peak_bytes.values())
        for c in candidates(request, request.cuts())
    )
    assert min(outcome.held_bytes for outcome in known) == least


def test_a_search_without_time_stops_at_the_first_plan_and_says_so():
    ranking = search_plans(ask(), time_limit_s=0.0)
    assert not ranking.is_complete
    assert len(ranking.ranked) == 1


def test_no_plan_that_a_search_had_no_time_for_is_faster_than_its_headroom_says():
    gains = []
    for seed in range(3, 7):
        request = random_request(random.Random(seed))
        first, best = search_plans(request, time_limit_s=0.0), search_plans(request).ranked[0]
        gains.append(best.throughput / first.ranked[0].throughput - 1)
        assert gains[-1] <= first.headroom * (1 + 1e-9), seed
    assert max(gains) > 0.05, "a search that was ended early had not found the best"


def test_progress_rises_to_all():
    told = []
    search_plans(ask(), tick=lambda progress: told.append(progress.settled))
    assert told[-1] == pytest.approx(1.0)
    assert told == sorted(told)


def test_the_reasons_say_what_neighbours_lose():
    request = ask(depths=(2,), schedules=("1f1b",), profile=even(8, output_bytes=400, sizes=(1,)))
    ranking = search_plans(request, top=1)
    lines = list(reasons(ranking, request))
    assert len(lines) == 1
    assert lines[0].startswith("data inside the node: +")
    assert "waiting for messages +" in lines[0]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_pace_of_a_run_without_a_flush_is_that_of_a_long_run(seed):
    chance = random.Random(seed)
    request = Request(
        random_profile(chance, 6),
        flat(2, Link(0.1, 40.0)),
        4,
        schedules=("pipedream_2bw", "wpipe"),
        depths=(2,),
        recomputes=(None,),
    )
    for outcome in search_plans(request).ranked:
        run = outcome.setting.schedule_spec().run(1000)
        costs = request.cuts().costs_of(outcome.setting)
        long = run_time(
            lambda steps, run=run, costs=costs: Scenario(run.lists(steps), costs, request.cluster),
            1000,
            run.microbatches_per_step,
        )
        assert outcome.seconds == pytest.approx(long.period_s, rel=1e-3)
        assert outcome.staleness == 1


def test_pipedreams_replicas_are_a_candidate():
    request = ask(schedules=("1f1b_rr",), cluster=flat(3), profile=even(4, sizes=(1,)))
    replicated = [c for c in candidates(request, request.cuts()) if c.schedule == "1f1b_rr"]
    assert replicated
    assert all(sum(c.replicas) == 3 and sum(c.partition) == 4 for c in replicated)


def test_the_critical_path_of_a_plan_reaches_from_start_to_end():
    request = random_request(random.Random(5))
    best = search_plans(request, top=1).ranked[0]
    costs = request.cuts().costs_of(best.setting)
    path = critical_path(predict_candidate(best.setting, costs, request.cluster).timeline)
    assert path[-1].end_s - path[0].start_s == pytest.approx(best.seconds)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"depths": (64,)}, "got a depth of 64 stages, expected at most the 8 layers of mlp; try 4"),
        ({"depths": (3,)}, "got depths 3 for 4 devices, expected depths that divide the devices; try 1, 2, 4"),
        ({"cluster": flat(64), "batch_size": 1}, "got 1 samples for 8 layers on 64 devices under gpipe, 1f1b"),
        ({"cluster": flat(64), "batch_size": 1}, "evenly; try a batch of 8, `fewer=True` or other schedules"),
        ({"cluster": flat(100_000), "batch_size": 1}, "got 1 samples for 8 layers on 100000 devices"),
        ({"batch_size": 3, "depths": (1,)}, "got a batch of 3 samples, expected a batch that 4 devices can share in"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes, said):
    with pytest.raises(ProfileError) as error:
        search_plans(ask(**changes))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_devices_are_left_idle_only_if_that_is_allowed():
    request = ask(cluster=flat(3), batch_size=4)
    assert {c.num_devices for c in candidates(request, request.cuts())} == {3}
    request = replace(request, fewer=True)
    assert {c.num_devices for c in candidates(request, request.cuts())} == {1, 2, 3}
    copies = replace(request, depths=(1,))
    assert search_plans(copies, top=1).ranked[0].setting.num_devices == 2  # three cannot share four samples evenly


def test_whole_nodes_are_left_idle_or_part_of_one():
    request = ask(cluster=of_nodes(flat(2), 3), batch_size=12, fewer=True)
    assert {c.num_devices for c in candidates(request, request.cuts())} == {1, 2, 4, 6}


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("name", ["1f1b", "interleaved", "chimera", "wpipe"])
def test_lists_made_from_one_copy_are_those_that_run(name, width):
    chunks = 2 if name == "interleaved" else None
    candidate = Setting(name, 2, 4, chunks, microbatch_size=1, width=width, placement="data")
    made, run = lowered(candidate.order, 1), lower(candidate.schedule_spec().run(1).lists(1).held())
    assert place_copies(made, "data", width) == run


@pytest.mark.parametrize("network", [NetworkOptions(sends="blocking"), NetworkOptions("eager", slowdown=0.25)])
def test_a_plan_is_predicted_with_the_messages_that_are_asked_for(network):
    request = ask(profile=even(8, output_bytes=40, sizes=(1,)), depths=(4,), schedules=("1f1b",), network=network)
    best = search_plans(request).ranked[0]
    lists, costs = lowered(best.setting.order, 1), request.cuts().costs_of(best.setting)
    assert best.seconds == simulate_lists(lists, costs, request.cluster, network=network).makespan_s
    assert best.seconds != simulate_lists(lists, costs, request.cluster).makespan_s
