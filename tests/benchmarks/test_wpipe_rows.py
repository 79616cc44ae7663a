"""WPipe's rows: models from their shapes, the search beside an exhaustive one, placements, Table 1."""

from dataclasses import replace

import pytest

from pipesched.profiles.clusters import of_nodes
from pipesched.profiles.io import load_machine

ROWS = "paper_rows.wpipe."


@pytest.fixture
def bert(rows):
    """Return the profile of 24 layers for any micro-batch."""
    models = rows("models")
    return lambda size: models.bert(24)


def test_every_choice_is_a_batch_with_enough_micro_batches(rows):
    for choice in rows("search").choices("wpipe", 64, 512):
        assert choice.samples == 512
        assert choice.depth * choice.width == 64
        assert choice.microbatches >= choice.depth


@pytest.mark.parametrize("scheme", ["wpipe", "pipedream_2bw", "gpipe", "pipedream"])
def test_the_search_finds_the_best_of_all_choices_by_bounds_that_are_never_above_the_simulation(rows, bert, scheme):
    search = rows("search")
    tried, memory_bytes = [*search.choices(scheme, 8, 32)], 4e9
    fitting = []
    for choice in tried:
        pipeline = search.Pipeline(choice, bert)
        seconds, peak_bytes = pipeline.simulated()
        assert pipeline.least_s <= seconds * (1 + 1e-9), choice
        assert pipeline.least_bytes <= peak_bytes, choice
        if peak_bytes <= memory_bytes:
            fitting.append(choice.samples / seconds)
    best = search.fastest(tried, bert, memory_bytes)
    assert best.throughput == pytest.approx(max(fitting), rel=2e-3)
    assert search.fastest(tried, bert, 1e6) is None


def test_sums_cross_the_network_where_pipelines_stay_in_a_node(rows, bert):
    """Eight copies of 8 stages: 2 * 7 / 8 of eight stages' bytes over one interface, or of one stage's over NVLink."""
    search = rows("search")
    for spans_nodes, seconds in ((False, 8 / 3.125e9), (True, 1 / 300e9)):
        choice = search.Choice("pipedream_2bw", 8, 8, 1, 8, False, spans_nodes)
        alone = search.Choice("pipedream_2bw", 8, 1, 1, 8, False, False)
        own, plain = (search.Pipeline(of, bert).costs.stages[3] for of in (choice, alone))
        assert own.step_s - plain.step_s == pytest.approx(2 * 7 / 8 * own.weight_bytes * seconds, rel=1e-9)


@pytest.mark.parametrize(("microbatches", "further"), [(4, 0), (6, 2), (8, 4)])
def test_the_papers_count_of_2bw_keeps_the_activations_of_further_micro_batches(rows, bert, microbatches, further):
    """The first of d GPUs holds M micro-batches instead of d."""
    search = rows("search")
    choice = search.Choice("pipedream_2bw", 4, 1, 2, microbatches, False, False)
    plain, kept = (search.Pipeline(replace(choice, keeps_period=keeps), bert) for keeps in (False, True))
    more = kept.simulated()[1] - plain.simulated()[1]
    assert more == pytest.approx(further * plain.costs.stages[0].saved_bytes, rel=0.01)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("scheme", ["gpipe", "pipedream", "pipedream_2bw", "wpipe"])
def test_table_1_holds_for_as_many_micro_batches_as_workers(rows, scheme, n):
    schedules = rows("schedules")
    assert schedules.counted(scheme, n, n).numbers == pytest.approx(schedules.published(scheme, n, n).numbers)


def test_small_micro_batches_of_bert_are_inefficient(rows):
    """Samples per second of a block at a micro-batch of 1 are at most half of the samples per second at 8."""
    profile = rows("models").bert(24)
    single, eight = (profile.cost_of_layers(1, 2, size).both_s / size for size in (1, 8))
    assert single > 2 * eight


def test_resnext_50_has_the_parameters_and_flops_that_torchvision_names(rows):
    """25,028,904 parameters and 4.23 billion multiplications: documentation of ResNeXt50_32X4D_Weights."""
    layers = rows("resnext").resnext((3, 4, 6, 3))
    assert len(layers) == 1 + 16 + 1
    assert sum(layer.parameters for layer in layers) == 25_028_904
    flops = sum(kernel.flops for layer in layers for kernel in layer.kernels)
    assert flops / 2e9 == pytest.approx(4.23, abs=0.005)
    outputs = [layer.outputs for layer in layers[::4]]
    assert outputs == [64 * 56**2, 512 * 28**2, 1024 * 14**2, 1024 * 14**2, 2048 * 7**2]


@pytest.mark.parametrize(("layers", "billions"), [(192, 1.4), (768, 5.5)])
def test_the_large_berts_have_as_many_parameters_as_the_paper_says(rows, layers, billions):
    weight_bytes = sum(layer.weight_bytes for layer in rows("models").bert(layers).layers)
    assert weight_bytes / 4e9 == pytest.approx(billions, abs=0.05)


def test_one_image_is_bound_by_launches_and_many_are_not(rows):
    """Stage 3: 10 kernels of 60 us on the host; 0.44 GFLOP of an image at 80 % of 15.7 TFLOP/s at least."""
    profile = rows("resnext").resnext_profile
    single, many = (profile((1, 1, 2, 1), size, 1.0, 1e9).cost_of_layers(4, 5, size) for size in (1, 256))
    assert single.forward_s == pytest.approx(10 * 60e-6)
    assert 256 * 0.44e9 / (0.8 * 15.7e12) < many.forward_s < 256 * single.forward_s / 2
    assert single.backward_s == 2 * single.forward_s


def test_resnext500_makes_the_papers_throughput_inside_the_nodes(rows):
    messages = rows("messages")
    assert messages.resnext500().throughput(messages.A, 4) == pytest.approx(607.8, rel=1e-3)


@pytest.fixture
def half(rows):
    """Return Table 3 in half: ResNeXt500 with a batch of 1,664 on four nodes."""
    return replace(rows("messages").resnext500(), batch=1664, cluster=of_nodes(load_machine("wpipe-v100"), 4))


def test_pipelines_inside_the_nodes_beat_gradients_inside_for_large_activations(rows, half):
    """Table 3: 607.8 against 497.3 samples/s on twice as many; compressed messages bring it back."""
    pipelines = rows("messages").Layout(4, 8, 4)
    gradients = replace(pipelines, placement="data")
    inside, across = half.throughput(pipelines), half.throughput(gradients)
    assert inside > 1.1 * across
    assert replace(half, compressed=True).throughput(gradients) > 1.05 * across


def test_without_transfers_a_period_takes_the_work_of_the_slowest_device(rows, half):
    """One node, one pipeline, no bytes: R and the rest of WPipe leave no bubble."""
    case = replace(half, cluster=load_machine("wpipe-v100"), batch=64)
    layout = rows("messages").Layout(4, 1, 8)
    costs = case.costs(layout)
    silent = replace(costs, stages=tuple(replace(cost, output_bytes=0) for cost in costs.stages))
    work_s = max(
        sum(8 * (2 * cost.forward_s + cost.backward_s) + cost.step_s for cost in silent.stages[rank::4])
        for rank in range(4)
    )
    assert case.throughput(layout) == pytest.approx(64 / work_s, rel=0.01)
