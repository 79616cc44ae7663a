"""Costs of layers for any schedule: of equal layers closed forms hold, of others the slowest stage sets the pace."""

import pytest

import pipesched
from pipesched.profiles.costs import LayerCosts, StageCost, StageCosts
from pipesched.profiles.io import Plan, Predicted
from pipesched.schedules.transforms import ScheduleSpec
from tests.profiles.hand_profiles import layer, measurement, profile

P, M = 4, 16
THIRDS = LayerCosts((StageCost(0.5, None, 0.5, 0.5),) * 8)
"""Two layers to each of four stages: F, I and W of a stage take a second each."""


@pytest.mark.parametrize(
    ("schedule", "makespan_s"),
    [
        ("gpipe", 3 * (M + P - 1)),
        ("1f1b", 3 * (M + P - 1)),
        ("interleaved", 3 * (M + (P - 1) / 2)),
        ("zb_h1", 3 * M + (P - 1)),
        ("zbv", 3 * M + (P - 1) / 2),
    ],
)
def test_equal_layers_take_what_the_closed_form_of_any_number_of_stages_says(schedule, makespan_s):
    result = pipesched.simulate(pipesched.build(schedule, P, M), THIRDS)
    assert result.makespan_s == pytest.approx(makespan_s)


@pytest.mark.parametrize(
    ("partition", "slowest_s"), [(None, 8), ("balanced", 8), ("uniform", 12), ("2,2", 12), ([3, 1], 8), ("1,3", 14)]
)
def test_layers_are_cut_as_a_profile_is(partition, slowest_s):
    costs = LayerCosts((StageCost(1.0, 1.0), StageCost(1.0, 1.0), StageCost(2.0, 2.0), StageCost(4.0, 4.0)))
    long, longer = (
        pipesched.simulate(pipesched.build("1f1b", 2, m), pipesched.Setup(costs, partition=partition)).makespan_s
        for m in (16, 17)
    )
    assert longer - long == slowest_s


def test_a_table_of_layers_is_costs_and_of_as_many_stages_those_of_stages(tmp_path):
    rows = ["10,20", "30,40", "50,60"]
    (tmp_path / "layers.csv").write_text("\n".join(["fwd_ms,bwd_ms", *rows]))
    (tmp_path / "stages.csv").write_text(
        "\n".join(["stage,fwd_ms,bwd_ms", *(f"{k},{row}" for k, row in enumerate(rows))])
    )
    of_layers, of_stages = (
        pipesched.compare(["gpipe", "1f1b"], tmp_path / f"{name}.csv", num_ranks=3, num_microbatches=4).to_rows()
        for name in ("layers", "stages")
    )
    assert of_layers == of_stages


def test_what_does_not_fit_is_told_with_the_file(tmp_path):
    (tmp_path / "two.csv").write_text("f,b\n1,2\n3,4\n")
    counts = {"num_ranks": 4, "num_microbatches": 8}
    with pytest.raises(pipesched.ProfileError, match=r"two\.csv: schedule 1f1b: partition: got 4 stages for 2 layers"):
        pipesched.simulate(pipesched.build("1f1b", **counts), tmp_path / "two.csv")
    with pytest.raises(pipesched.ArgumentError, match="microbatch_size: got 2, expected a size only with costs of a"):
        pipesched.simulate(pipesched.build("1f1b", **counts), pipesched.Setup(THIRDS, microbatch_size=2))
    with pytest.raises(
        pipesched.ProfileError,
        match=r"zb_h1: got a schedule that splits .*two\.csv\) have only B; give backward_input_s",
    ):
        pipesched.simulate(pipesched.build("zb_h1", 2, 4), tmp_path / "two.csv")


def test_a_plan_says_the_layers_of_its_stages():
    spec = ScheduleSpec(name="1f1b", num_ranks=2, num_microbatches=4)
    plan = Plan(model="mine", schedule_spec=spec, partition=(3, 1), microbatch_size=1, batch_size=4, compression=None,
                predicted=Predicted(1.0, 2.0))  # fmt: skip
    costs = LayerCosts((StageCost(1.0, 2.0),) * 4)
    assert pipesched.simulate(plan, costs).costs.stages == (StageCost(3.0, 6.0), StageCost(1.0, 2.0))


def test_the_stages_of_a_training_run_take_what_their_layers_take():
    costs = LayerCosts((StageCost(0.001, 0.002),) * 8)
    forecast = pipesched.train(
        "mlp:width=8,layers=8", pipesched.build("gpipe", 2, 2), num_steps=2, costs=costs
    ).forecast
    assert [stage.forward_s for stage in forecast.costs.stages] == pytest.approx([0.004, 0.004])


def test_a_backward_that_is_whole_is_split_by_a_share_or_refused_with_what_to_give():
    whole = LayerCosts((StageCost(0.5, 1.0),) * 8, origin="layers.csv")
    counts = {"num_ranks": P, "num_microbatches": M}
    asked = r"^zb_h1: got a schedule that splits .*, but the costs \(layers\.csv\) have only B; .*`input_share=0\.5`"
    with pytest.raises(pipesched.ProfileError, match=asked):
        pipesched.simulate(pipesched.build("zb_h1", **counts), whole)
    reason = pipesched.sweep(["zb_h1", "1f1b"], whole, **counts).refused[0].reason
    assert reason is not None
    assert reason.startswith("zb_h1: got a schedule that splits the backward")

    quarter = (StageCost(1.0, 2.0, 0.0, 2.0), *[StageCost(1.0, 2.0, 0.5, 1.5)] * 3)
    shared = pipesched.simulate(pipesched.build("zb_h1", **counts), pipesched.Setup(whole, input_share=0.25))
    assert shared.makespan_s == pipesched.simulate(pipesched.build("zb_h1", **counts), StageCosts(quarter)).makespan_s
    with pytest.raises(pipesched.ArgumentError, match=r"^input_share: got 2, expected a number from 0 to 1"):
        pipesched.simulate(pipesched.build("zb_h1", **counts), pipesched.Setup(whole, input_share=2))


def test_a_comparison_says_how_layers_were_cut():
    caption = pipesched.compare(["1f1b", "interleaved"], LayerCosts((StageCost(1.0, 2.0),) * 24), num_ranks=8,
                                num_microbatches=8).table().caption  # fmt: skip
    assert caption.split("\n") == [
        "1f1b: 24 layers on 8 stages: 1 of 4, 6 of 3, 1 of 2",
        "interleaved: v = 2, 24 layers on 16 stages: 8 of 2, 8 of 1; v = 3 would be even",
    ]


def test_a_comparison_says_the_size_that_nobody_gave():
    measured = profile(*[layer(measurement(4, 1.0, 2.0), measurement(8, 2.0, 4.0))] * 4)
    counts = {"num_ranks": 2, "num_microbatches": 4}
    lines = pipesched.compare(["1f1b"], measured, **counts).table().caption.split("\n")
    assert lines[0] == "micro-batches of 4 samples, where no microbatch_size is given"
    assert (
        "samples"
        not in pipesched.compare(["1f1b"], pipesched.Setup(measured, microbatch_size=8), **counts).table().caption
    )
