"""AvgPipe's rows: their cluster, models and memory beside counts by hand."""

import pytest

ROWS = "paper_rows.avgpipe."


def test_an_lstm_is_near_pipedreams_measurement(rows):
    """LSTM(1024, 1024) of 32 sentences took 2.49 and 4.20 ms; forward and backward have 2 and 4 products."""
    forward_s, backward_s = rows("workloads")._lstm_s(32, 48, 1024, 1024)
    assert forward_s == pytest.approx(2.491e-3, rel=0.1)
    assert backward_s == pytest.approx(4.203e-3, rel=0.1)


def test_models_have_their_parameters(rows):
    workloads = rows("workloads")
    counts = {make().name: sum(make().profile.weights_of_layers) / 4e6 for make in workloads.WORKLOADS}
    assert counts["BERT"] == pytest.approx(334, rel=0.01)  # arXiv:1810.04805: 340 with the pooler
    assert counts["AWD"] == pytest.approx(24, rel=0.02)  # arXiv:1708.02182
    assert counts["GNMT"] == pytest.approx(193.8, rel=0.01)  # the sum of PipeDream's graph


def test_data_parallelism_takes_the_time_of_its_ring(rows):
    """Three nodes on 1 Gb/s: each sends 2 (n - 1) / n of the gradients through its interface."""
    workloads, systems = rows("workloads"), rows("systems")
    workload = workloads.bert(tokens=128)
    result = systems.baseline("PyTorch", workload)
    ring_s = 2 * 2 / 3 * sum(workload.profile.weights_of_layers) / 125e6
    batch_s = result.s_per_sample * 30  # five samples on each of six GPUs
    assert ring_s < batch_s < 1.1 * ring_s


def test_pipedreams_stages_hold_a_batch_for_each_gpu_from_them_on(rows):
    workloads, systems = rows("workloads"), rows("systems")
    workload = workloads.bert(tokens=128)
    held = systems.baseline("PipeDream", workload).bytes_per_device
    kept = [stage.saved_bytes for stage in workload.costs(32).stages]
    assert all(many > (6 - stage) * kept[stage] for stage, many in enumerate(held))
    assert list(held) == sorted(held, reverse=True)


@pytest.mark.parametrize("pipelines", [1, 2])
def test_afab_holds_all_micro_batches_of_each_pipeline(rows, pipelines):
    workloads, systems = rows("workloads"), rows("systems")
    workload = workloads.bert(tokens=128)
    costs = workload.costs(8).stages
    held = systems.afab(workload, 4, pipelines).bytes_per_device
    for stage, most in zip(costs, held, strict=True):
        models = pipelines * (stage.weight_bytes + stage.optimizer_bytes)
        models += (1 + pipelines) * stage.weight_bytes * (pipelines > 1)
        assert models + pipelines * 4 * stage.saved_bytes <= most
        assert most <= 1.2 * (models + pipelines * 4 * stage.saved_bytes)


def test_algorithm_1_stops_at_the_first_batch_that_is_no_faster(rows):
    seconds = [5.0, 4.0, 3.0, 3.0, 1.0]
    assert rows("schedules").raised_advance(seconds.__getitem__, 4) == [5.0, 4.0, 3.0, 3.0]
    assert rows("schedules").raised_advance(seconds.__getitem__, 1) == [5.0, 4.0]
