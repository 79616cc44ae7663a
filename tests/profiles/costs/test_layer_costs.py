"""Costs of layers, cut into stages, and as profiles: sums of rows, in proportion to the samples."""

from dataclasses import replace

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import LayerCosts, StageCost, profile_of_costs, profile_with_input_share
from pipesched.profiles.io import load_layer_costs


def test_a_stage_takes_what_its_layers_take_and_sends_what_the_last_of_them_sends():
    first = StageCost(
        1.0, 2.0, 0.5, 1.5, step_s=0.25, output_bytes=7, saved_bytes=10, weight_bytes=3, optimizer_bytes=6
    )
    second = StageCost(
        3.0, 5.0, 2.0, 3.0, step_s=0.5, output_bytes=9, saved_bytes=20, weight_bytes=4, optimizer_bytes=8
    )
    costs = LayerCosts((first, second, first), "mine", overlap=0.5).costs_of_layers([(0, 2), (2, 3)])
    both = StageCost(
        4.0, 7.0, 2.5, 4.5, step_s=0.75, output_bytes=9, saved_bytes=30, weight_bytes=7, optimizer_bytes=14
    )
    assert costs.stages == (both, first)
    assert (costs.origin, costs.overlap, costs.microbatch_size) == ("mine", 0.5, None)


def test_what_one_layer_leaves_out_counts_as_what_that_stands_for():
    plain = StageCost(1.0, 2.0, saved_bytes=10, copy_s=0.5)
    said = StageCost(
        3.0, None, 2.0, 4.0, saved_bytes=20, saved_for_weight_bytes=5, copy_s=1.0, predict_s=2.0, recompute_s=7.0
    )
    (stage,) = LayerCosts((plain, said)).costs_of_layers([(0, 2)]).stages
    assert (stage.backward_s, stage.recompute_s, stage.predict_s, stage.saved_for_weight_bytes) == (8.0, 8.0, 2.5, 15)
    assert (stage.backward_input_s, stage.backward_weight_s) == (None, None)
    (stage,) = LayerCosts((plain, plain)).costs_of_layers([(0, 2)]).stages
    assert (stage.recompute_s, stage.predict_s, stage.saved_for_weight_bytes) == (None, None, None)


def test_stages_of_another_number_of_layers_are_refused():
    with pytest.raises(ProfileError, match=r"costs \(mine\): got 1 layers, expected 2"):
        LayerCosts((StageCost(1.0, 2.0),), "mine").costs_of_layers([(0, 1), (1, 2)])


ROWS = [(1.0, 0.5, 1.5, 6, 20, 3), (2.0, 3.0, 1.0, 8, 60, 4), (4.0, 4.0, 4.0, 10, 30, 5), (1.0, 2.0, 2.0, 0, 16, 6)]
"""F, I, W [s]; output, saved and weight bytes."""
LAYERS = LayerCosts(
    tuple(
        StageCost(
            f, None, i, w, step_s=0.5, output_bytes=out, saved_bytes=saved, weight_bytes=weight, optimizer_bytes=7
        )
        for f, i, w, out, saved, weight in ROWS
    ),
    origin="layers.csv",
)
BOUNDS = ((0, 1), (1, 3), (3, 4))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_stages_are_sums_of_rows_in_proportion_to_the_samples(size):
    profile = profile_of_costs(LAYERS, "layers layers.csv", 2, [1, 4])
    for (first, last), stage in zip(BOUNDS, profile.costs_of_layers(BOUNDS, size).stages, strict=True):
        rows, share = ROWS[first:last], size / 2
        forward_s, input_s, weight_s = (share * sum(row[column] for row in rows) for column in range(3))
        assert (stage.forward_s, stage.backward_s) == pytest.approx((forward_s, input_s + weight_s))
        if first:  # the first stage has no I
            assert (stage.backward_input_s, stage.backward_weight_s) == pytest.approx((input_s, weight_s))
        assert stage.output_bytes == share * rows[-1][3]
        assert stage.saved_bytes == share * sum(row[4] for row in rows)
        assert stage.weight_bytes == sum(row[5] for row in rows)
        assert (stage.step_s, stage.optimizer_bytes) == (0.5 * len(rows), 7 * len(rows))


def test_from_i_to_w_a_stage_holds_what_f_saved():
    profile = profile_of_costs(LAYERS, "layers", 1)
    (_, stage, _) = profile.costs_of_layers(BOUNDS, 1).stages
    assert stage.saved_for_weight_bytes == 60 + 30


def test_stages_of_a_layer_have_its_working_memory_in_proportion_to_the_samples():
    layers = LayerCosts(tuple(StageCost(1.0, 2.0, saved_bytes=5, working_bytes=working) for working in (40, 0, 6)))
    profile = profile_of_costs(layers, "layers", 2, [1, 4])
    for size in (1, 2, 3, 4):
        stages = profile.costs_of_layers(((0, 1), (1, 2), (2, 3)), size).stages
        assert [stage.working_bytes for stage in stages] == [20 * size, 0, 3 * size]


def test_i_and_w_that_nobody_knows_are_shares_of_b_but_for_the_first_stage():
    whole = LayerCosts((StageCost(1.0, 2.0), StageCost(1.0, 4.0), StageCost(1.0, None, 3.0, 5.0)))
    profile = profile_with_input_share(profile_of_costs(whole, "layers", 1), 0.25)
    halves = [
        (stage.backward_input_s, stage.backward_weight_s)
        for stage in profile.costs_of_layers(((0, 1), (1, 2), (2, 3)), 1).stages
    ]
    assert halves == [(0.0, 2.0), (1.0, 3.0), (3.0, 5.0)]
    assert profile.provenance.device.endswith("I supposed to be 0.25 of B")
    assert profile_with_input_share(profile, 0.5) is profile


def test_it_says_of_which_size_it_is_and_what_is_supposed():
    profile = profile_of_costs(LAYERS, "layers", 2, [1, 2, 4])
    assert profile.microbatch_sizes == (1, 2, 4)
    assert profile.provenance.device == "layers.csv, micro-batches of 2, sizes 1, 4 in proportion"
    assert profile_of_costs(LAYERS, "layers", 2).microbatch_sizes == (2,)


def test_layers_keep_the_names_that_a_table_gives_them(tmp_path):
    table = tmp_path / "layers.csv"
    for names, kept in ((["embed", "head"], ["embed", "head"]), (["0", "1"], ["layer", "layer"])):
        table.write_text("layer,fwd_ms,bwd_ms\n" + "".join(f"{name},1,2\n" for name in names))
        assert [layer.name for layer in profile_of_costs(load_layer_costs(table), "layers", 1).layers] == kept


@pytest.mark.parametrize(
    ("layer", "overlap", "message"),
    [
        (StageCost(1.0), 0.0, "layer 0: got no backward, expected backward_s, or its two halves"),
        (StageCost(1.0, 2.0), 0.5, "got overlap 0.5, expected none"),
        (StageCost(1.0, 2.0, recompute_s=0.5), 0.0, "layer 0: got recompute_s 0.5, expected 1, as a profile"),
        (StageCost(1.0, 2.0, saved_bytes=8, saved_for_weight_bytes=2), 0.0, "got saved_for_weight_bytes 2, expected 8"),
    ],
)
def test_what_a_profile_cannot_say_is_refused(layer, overlap, message):
    with pytest.raises(ProfileError, match=message):
        profile_of_costs(LayerCosts((layer,), overlap=overlap), "layers", 1)


def test_the_gradients_of_a_layer_keep_their_bytes():
    layers = replace(LAYERS, layers=tuple(replace(layer, gradient_bytes=99) for layer in LAYERS.layers))
    profile = profile_of_costs(layers, "layers", 1)
    assert profile.cost_of_layers(0, profile.num_layers).gradient_bytes == 99 * profile.num_layers
