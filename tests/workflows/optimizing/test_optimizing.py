"""Optimize as a library: lists like any others, a proof, and refusals that name arguments."""

import random

import pytest

import pipesched
from pipesched.profiles.clusters import Device
from pipesched.profiles.costs import LayerCosts, StageCost, StageCosts
from pipesched.schedules.formats import read_schedule

COSTS = pipesched.DeviceCost(1.0, 2.0, 1.0, 1.0, saved_bytes=10**9, weight_bytes=10**8)
SMALL = {"num_ranks": 3, "num_microbatches": 4}


def test_the_lists_run_and_are_written_and_read(tmp_path):
    result = pipesched.optimize(pipesched.build("zb_h1", **SMALL), COSTS, in_flight=4, num_workers=1)
    assert (result.gap, result.makespan_s) == (0.0, 14.0)
    assert result.least.memory == "with 4 micro-batches in flight at most"
    assert max(result.simulation.peak_microbatches.values()) <= 4
    assert pipesched.check(result.schedule).runs_on("gloo")
    for name in ("best.json", "best.csv"):
        result.save(tmp_path / name)
        assert read_schedule(tmp_path / name).num_microbatches == 4
        assert pipesched.simulate(tmp_path / name, COSTS).makespan_s == 14.0
    assert result.to_frame().index[0] == "optimum"
    assert result.to_frame()["gap"].min() == 0
    assert "proven" in result.table().caption


def test_a_whole_backward_may_be_split_and_devices_may_be_the_limit():
    assert pipesched.optimize(pipesched.build("1f1b", **SMALL), COSTS, seconds=0).makespan_s == 18.0
    assert (
        pipesched.optimize(
            pipesched.build("1f1b", **SMALL), COSTS, is_split=True, in_flight=4, num_workers=1
        ).makespan_s
        == 14.0
    )
    cluster = pipesched.Cluster((Device(memory_bytes=23 * 10**8),) * 3)
    result = pipesched.optimize(pipesched.build("1f1b", **SMALL), pipesched.Setup(COSTS, cluster), num_workers=1)
    assert result.least.memory == "in the memory of the devices"
    assert max(result.simulation.peak_microbatches.values()) == 2
    assert result.simulation.fits
    assert result.gap == 0


def test_a_simulation_says_how_far_it_is_from_the_least():
    result = pipesched.simulate(pipesched.build("gpipe", **SMALL), COSTS, bound_seconds=0)
    assert (result.least.bound_s, result.least.gap, result.least.in_flight) == (18.0, 0.0, 4.0)
    naive = pipesched.simulate(pipesched.build("naive", 2, 2), COSTS, bound_seconds=5)
    assert naive.least.gap == 0, "one micro-batch at a time takes as long in any order"
    zb_h1 = pipesched.simulate(pipesched.build("zb_h1", **SMALL), COSTS, bound_seconds=0)
    assert zb_h1.to_dict()["least"]["bound_s"] <= zb_h1.makespan_s


def test_a_time_below_what_is_proven_is_no_gap_but_a_false_proof():
    least = pipesched.simulate(pipesched.build("gpipe", **SMALL), COSTS, bound_seconds=0).least
    assert (least.gap_of(18.0), least.gap_of(27.0)) == (0.0, 0.5)
    with pytest.raises(AssertionError, match=r"17\.9 s is below a bound of 18\.0 s"):
        least.gap_of(17.9)


@pytest.mark.slow
def test_times_that_are_no_whole_ticks_leave_open_what_rounding_does():
    costs = pipesched.DeviceCost(1.01, None, 0.977, 1.003333)
    counts = {"num_ranks": 2, "num_microbatches": 2, "num_chunks": 2}
    result = pipesched.optimize(pipesched.build("interleaved_zb", **counts), costs, in_flight=1.5, num_workers=1)
    assert 0 < result.gap < 1e-4
    assert "at most 0.01% above" in result.least.sentence
    assert result.least.bound_s < result.makespan_s
    assert result.least.resolution_s < 1e-4


@pytest.mark.slow
def test_without_or_tools_only_a_search_is_refused(monkeypatch):
    monkeypatch.setattr("pipesched.simulator.optimum.order_proof.import_module", missing)
    assert pipesched.optimize(pipesched.build("1f1b", **SMALL), COSTS).gap == 0
    assert pipesched.simulate(pipesched.build("v_half", 3, 3), COSTS, bound_seconds=0).least.gap > 0
    with pytest.raises(ModuleNotFoundError):
        pipesched.optimize(pipesched.build("v_half", 3, 3), COSTS)


def missing(name):
    raise ModuleNotFoundError(name=name.partition(".")[0])


@pytest.mark.slow
def test_a_search_that_is_interrupted_has_the_best_so_far_and_says_so():
    def interrupt(share, best_s, bound_s):
        raise KeyboardInterrupt

    source = pipesched.build("v_half", 4, 8)
    costs = pipesched.DeviceCost(1.0, None, 1.0, 1.0)
    result = pipesched.optimize(source, costs, seconds=60, num_workers=1, progress=interrupt)
    assert result.least.is_stopped
    assert result.least.sentence.endswith("above the least possible; the search was stopped")
    assert result.makespan_s == result.known[0].makespan_s >= result.least.bound_s


@pytest.mark.slow
def test_more_ops_than_a_search_can_take_are_bounded_but_not_searched(monkeypatch):
    monkeypatch.setattr("pipesched.simulator.optimum.order_proof._MOST_OPS", 50)
    costs, counts = pipesched.DeviceCost(1.0, None, 1.0, 1.0), {"num_ranks": 3, "num_microbatches": 3}
    assert pipesched.simulate(pipesched.build("v_half", **counts), costs, bound_seconds=0).least.gap > 0
    with pytest.raises(pipesched.SimulationError, match="got 54 ops to search, expected at most 50; try 2 micro-"):
        pipesched.simulate(pipesched.build("v_half", **counts), costs, bound_seconds=1)
    monkeypatch.setattr("pipesched.simulator.optimum.orderable_lists._MOST_OPS", 50)
    with pytest.raises(pipesched.SimulationError, match="got 60 ops to order, expected at most 50; try 2 micro-"):
        pipesched.optimize(pipesched.build("v_half", **counts), costs)


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"in_flight": 0}, "in_flight: got 0, expected a number above 0"),
        ({"in_flight": 0.5}, "rank 0: got room for 0.5 micro-batches, expected room for at least one"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(keywords, text):
    with pytest.raises(ValueError, match=text):
        pipesched.optimize(pipesched.build("1f1b", **SMALL), COSTS, **keywords)


def test_a_batch_that_is_repeated_has_the_least_period_and_simulate_says_the_same():
    """V-Half waits at both ends of a batch for what the others fill; the order that is found leaves less to wait."""
    costs = pipesched.DeviceCost(2.0, None, 2.0, 2.0)
    result = pipesched.optimize(pipesched.build("v_half", 2, 3), costs, is_repeated=True, num_workers=1)
    assert (result.gap, result.period_s) == (0, 18.0)
    again = pipesched.simulate(result.schedule, costs)
    assert again.steady_s_per_microbatch * 3 == result.period_s < again.makespan_s
    assert {"period", "per micro-batch"} <= set(result.table().rows[0])
    assert "batch after batch, takes less time: proven" in result.table().caption


@pytest.mark.slow
def test_stages_recompute_where_the_limit_makes_it_worth_while():
    """With room for one micro-batch, and inputs that take none, two are on their way."""
    lists = pipesched.build("1f1b", 2, 4)
    without = pipesched.optimize(lists, COSTS, in_flight=1, seconds=0)
    result = pipesched.optimize(lists, COSTS, in_flight=1, may_recompute=True, num_workers=1)
    assert (without.makespan_s, result.makespan_s, result.gap, result.recomputed) == (24.0, 16.0, 0, (0,))
    assert max(result.simulation.peak_microbatches.values()) == 1
    assert pipesched.check(result.schedule).runs_on("gloo")
    assert "recomputing: stage 0" in result.table().caption
    with pytest.raises(
        pipesched.SimulationError, match=r"got room for 0.9 micro-batches, expected room for at least one"
    ):
        pipesched.optimize(lists, COSTS, in_flight=0.9, may_recompute=True)


def test_a_run_without_a_flush_has_the_least_period_where_enough_are_in_flight(tmp_path):
    """A way there and back of 2 s delays PipeDream, 18 s / 4; with 7, 5, 3, 1 in flight all ranks work all the time."""
    costs, counts = pipesched.DeviceCost(1.0, 2.0), {"num_ranks": 4, "num_microbatches": 24}
    cluster = pipesched.flat(4, pipesched.Link(1.0))
    result = pipesched.optimize(pipesched.build("pipedream", **counts), pipesched.Setup(costs, cluster), in_flight=7)
    assert (result.period_s, result.gap, result.known[0].period_s) == (3.0, 0, 4.5)
    assert [*result.simulation.peak_microbatches.values()] == [7, 5, 3, 1]
    assert "micro-batch after micro-batch, takes less time: proven" in result.table().caption
    assert pipesched.check(result.schedule).runs_on("gloo")
    result.save(tmp_path / "best.json")
    assert pipesched.simulate(tmp_path / "best.json", pipesched.Setup(costs, cluster)).makespan_s == result.makespan_s
    fewer = pipesched.optimize(pipesched.build("pipedream", **counts), pipesched.Setup(costs, cluster), in_flight=3)
    assert (fewer.period_s, fewer.least.bound_s, fewer.over_limit.period_s) == (8.0, 6.0, 4.5)
    with pytest.raises(pipesched.ArgumentError, match="is_split: got this setting with pipedream, which has no flush"):
        pipesched.optimize(pipesched.build("pipedream", **counts), costs, is_split=True)


def test_double_buffered_weights_allow_one_micro_batch_more_than_there_are_for_a_step():
    """With 5, 4, 3, 1 in flight rank 0 waits for (2 F + 2 B + 2 messages) / 2 = 4 s."""
    lists = pipesched.build("pipedream_2bw", 4, 16)
    cluster, costs = pipesched.flat(4, pipesched.Link(1.0)), pipesched.DeviceCost(1.0, 2.0)
    result = pipesched.optimize(lists, pipesched.Setup(costs, cluster), in_flight=8)
    assert (result.period_s, result.least.bound_s) == (4.0, 3.0)
    assert max(result.simulation.peak_microbatches.values()) == 5
    assert pipesched.check(result.schedule).runs_on("gloo")
    stepping = StageCosts((StageCost(1.0, 2.0, step_s=1.0),) * 4)
    with pytest.raises(
        pipesched.SimulationError, match="pipedream_2bw: got steps that take time after every 4 micro-batches"
    ):
        pipesched.optimize(lists, pipesched.Setup(stepping, cluster), in_flight=8)


def test_a_run_without_a_flush_fits_with_all_versions_of_its_weights():
    """Beside weights and gradients there is room for one micro-batch more with its version, not for three."""
    costs = pipesched.DeviceCost(1.0, 2.0, saved_bytes=10, weight_bytes=10)
    cluster = pipesched.Cluster((Device(memory_bytes=60),) * 4)
    counts = {"num_ranks": 4, "num_microbatches": 16}
    assert not pipesched.simulate(pipesched.build("pipedream", **counts), pipesched.Setup(costs, cluster)).fits
    result = pipesched.optimize(pipesched.build("pipedream", **counts), pipesched.Setup(costs, cluster))
    assert result.simulation.fits
    assert (result.period_s, result.least.bound_s) == (6.0, 3.0)
    newest = pipesched.optimize(pipesched.build("vanilla_1f1b", **counts), pipesched.Setup(costs, cluster))
    assert (newest.period_s, newest.gap, newest.simulation.fits) == (3.0, 0, True)
    working = StageCost(1.0, 2.0, saved_bytes=10, weight_bytes=10, working_bytes=30)
    alone = pipesched.optimize(
        pipesched.build("pipedream", **counts), pipesched.Setup(StageCosts((working,) * 4), cluster)
    )
    assert (alone.period_s, alone.least.bound_s, alone.simulation.fits) == (12.0, 12.0 / 2, True)


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_all_orders_have_the_layers_of_the_given_schedule(name):
    """Each schedule has a fastest cut of its own; the bound is of one cut."""
    draw = random.Random(5)
    layers = [StageCost(f := draw.uniform(0.5, 2), 2 * f, f, f, output_bytes=draw.randint(1, 4)) for _ in range(10)]
    setup = pipesched.Setup(LayerCosts(tuple(layers)), pipesched.flat(4, pipesched.Link(0.0, 1.0)))
    lists = pipesched.build(name, 4, 4)
    result = pipesched.optimize(lists, setup, seconds=0)
    assert result.simulation.layers == pipesched.simulate(lists, setup).layers
    assert result.least.bound_s <= result.makespan_s <= pipesched.simulate(lists, setup).makespan_s
