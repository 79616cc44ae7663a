"""The functions `pipesched.compare` and `pipesched.compare_runs`."""

import pytest
from matplotlib.figure import Figure

import pipesched
from pipesched.schedules.formats import timeline_to_json, write_text
from pipesched.workflows import ArgumentError

COSTS = pipesched.DeviceCost(forward_s=1.0, backward_s=2.0, backward_input_s=1.0, backward_weight_s=1.0)


def test_each_schedule_has_the_row_that_simulate_gives():
    compared = pipesched.compare(
        ["gpipe", "Interleaved1F1B", "avgpipe"], COSTS,
        num_ranks=2, num_microbatches=4, num_chunks=2, parameters={"advance": 1},
    )  # fmt: skip

    assert [summary.name for summary in compared.summaries] == ["gpipe", "interleaved", "avgpipe"]
    alone = pipesched.simulate(pipesched.build("interleaved", 2, 4, 2), COSTS)
    assert compared["interleaved"].summary.makespan_s == alone.makespan_s
    assert compared["interleaved"].stage_share == 0.5
    assert compared.to_frame().loc["gpipe", "makespan_s"] == 15.0
    assert compared.to_frame()["peak_memory_worst_bytes"].dtype == float  # NaN, as the costs say no bytes
    assert isinstance(compared.plot(), Figure)
    assert "<td>gpipe</td>" in compared._repr_html_()
    assert repr(compared).startswith("ScheduleComparison(gpipe: 15 s, interleaved: ")


def test_one_that_cannot_be_built_says_why_if_it_may():
    names = ["1f1b", "chimera"]
    with pytest.raises(pipesched.schedules.ScheduleError):
        pipesched.compare(names, COSTS, num_ranks=3, num_microbatches=4)

    compared = pipesched.compare(names, COSTS, num_ranks=3, num_microbatches=4, keep_going=True)
    assert compared["1f1b"].summary.reason is None
    assert compared["chimera"].prediction is None
    assert "even" in (compared["chimera"].summary.reason or "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_chunks": 2}, "^num_chunks: got 2, expected a schedule that takes chunks"),
        ({"parameters": {"advance": 1}}, "^parameters: got advance, expected parameters of the schedules in this call"),
    ],
)
def test_what_no_schedule_takes_is_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        pipesched.compare(["gpipe", "1f1b"], COSTS, num_ranks=2, num_microbatches=4, **arguments)


def test_two_timelines_are_compared_quantity_by_quantity(tmp_path):
    slow = pipesched.DeviceCost(forward_s=2.0, backward_s=4.0)
    quick = pipesched.simulate(pipesched.build("1f1b", 2, 4), COSTS).timeline
    other = pipesched.simulate(pipesched.build("1f1b", 2, 4), slow).timeline
    write_text(tmp_path / "slow.json", timeline_to_json(other))

    compared = pipesched.compare_runs(quick, tmp_path / "slow.json")

    first = compared.to_frame().iloc[0]
    assert (first["quantity"], first["first"], first["second"], first["difference"]) == ("makespan_s", 15, 30, 1)
    assert compared.comparison.names == ("run 1", "slow")
    assert isinstance(compared.plot(), Figure)


def test_runs_with_jitter_have_the_percentiles_that_simulate_has():
    costs, counts = pipesched.DeviceCost(1.0, backward_s=2.0), {"num_ranks": 3, "num_microbatches": 4}
    compared = pipesched.compare(["1f1b", "gpipe"], pipesched.Setup(costs, jitter=0.2, seed=5), num_runs=9, **counts)
    for row in compared.to_rows():
        several = pipesched.simulate(
            pipesched.build(row["name"], **counts), pipesched.Setup(costs, jitter=0.2, seed=5), num_runs=9
        ).distribution
        assert [row[f"makespan_{name}_s"] for name in ("p50", "p90", "p99")] == [
            several.p50_s,
            several.p90_s,
            several.p99_s,
        ]
    assert "p50 / p90 / p99" in compared.table().rows[0]
    assert "p50 / p90 / p99" not in pipesched.compare(["1f1b"], costs, **counts).table().rows[0]
