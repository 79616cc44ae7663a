"""Predictions beside published runs: rows, their settings, and statistics against values by hand."""

import csv
import importlib
import json
from pathlib import Path

import pytest

from pipesched.profiles.io import ESTIMATE_ERRORS, estimate_errors, gpu_names, load_gpu

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CELLS = {
    "id": "nanotron-1",
    "source": "nanotron",
    "gpu": "H100-80GB",
    "n_gpus": "16",
    "model": "Llama-1B",
    "layers": "16",
    "hidden": "2048",
    "ffn": "8192",
    "heads": "32",
    "kv_heads": "32",
    "seq": "4096",
    "vocab": "131072",
    "tp": "2",
    "pp": "2",
    "dp": "4",
    "zero": "1",
    "schedule": "1f1b",
    "global_batch": "256",
    "micro_batch": "2",
    "recompute": "none",
    "dtype": "bf16",
    "iter_s": "2.0",
    "peak_gib_per_rank": "20;30",
    "note": "tied embeddings",
}


@pytest.fixture
def part(monkeypatch):
    """A function that imports a module of the benchmark."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return lambda name: importlib.import_module(f"published_rows.{name}")


@pytest.fixture
def table(part, tmp_path):
    """A function that writes rows, given as changed cells, and returns the path."""
    columns = part("row").COLUMNS

    def write(*rows):
        path = tmp_path / "runs.csv"
        with path.open("w", newline="") as lines:
            writer = csv.DictWriter(lines, columns, restval="")
            writer.writeheader()
            writer.writerows(CELLS | row for row in rows)
        return path

    return write


def test_a_row_has_typed_columns(part, table):
    (run,) = part("row").read_rows(table({}))
    assert (run.n_gpus, run.iter_s, run.peak_gib, run.experts, run.cp, run.vpp) == (16, 2.0, 30.0, None, 1, 1)
    assert not run.has_failed


@pytest.mark.parametrize("word", ["FAILED", "OOM"])
def test_a_failed_run_has_no_peak(part, table, word):
    (run,) = part("row").read_rows(table({"peak_gib_per_rank": word, "iter_s": ""}))
    assert run.has_failed
    assert run.peak_gib is None


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"layers": ""}, "layers is empty; expected a whole number of at least 1"),
        ({"tp": "2.5"}, "tp is '2.5'; expected a whole number of at least 1 or an empty cell"),
        ({"iter_s": "inf"}, "iter_s is 'inf'; expected a positive number or an empty cell"),
        ({"iter_s": "nan"}, "iter_s is 'nan'; expected a positive number or an empty cell"),
        ({"n_gpus": "inf"}, "n_gpus is 'inf'; expected a whole number of at least 1 or an empty cell"),
        ({"peak_gib_per_rank": "20;x"}, "peak_gib_per_rank is 'x'; expected a positive number or an empty cell"),
    ],
)
def test_a_row_that_cannot_be_read_has_a_reason_and_the_others_are_predicted(part, table, cells, reason):
    bad, good = map(part("prediction").predict, part("row").read_rows(table(cells, {"id": "nanotron-2"})))
    assert bad.reason == f"cannot be read: {reason}"
    assert bad.predicted_s is bad.predicted_peak_gib is bad.fits is None
    assert good.predicted_s > 0
    assert good.predicted_peak_gib > 0


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gpu": "abacus"}, "gpu is 'abacus'"),
        ({"dp": "", "n_gpus": "6"}, "n_gpus is 6; expected a multiple of tp x pp x cp, 4"),
        ({"heads": "30"}, "heads is 30; expected a divisor of hidden, 2048"),
    ],
)
def test_a_row_that_cannot_be_predicted_has_a_reason(part, table, cells, reason):
    (row,) = part("row").read_rows(table(cells))
    assert part("prediction").predict(row).reason.startswith(f"cannot be predicted: {reason}")


def test_a_table_without_rows_or_columns_is_refused(part, table, tmp_path):
    with pytest.raises(ValueError, match="has no rows"):
        part("row").read_rows(table())
    (tmp_path / "other.csv").write_text("id,source\n1,2\n")
    with pytest.raises(ValueError, match="lacks the columns gpu, n_gpus"):
        part("row").read_rows(tmp_path / "other.csv")


def test_the_setting_of_a_row_follows_from_its_columns_and_its_trainer(part, table):
    (run,) = part("row").read_rows(table({}))
    setting = part("setting").setting_of(run)
    assert (setting.microbatches, setting.microbatch_size, setting.depth, setting.tokens) == (32, 2, 2, 256 * 4096)
    assert (setting.sharding.tensor, setting.sharding.data, setting.sharding.zero) == (2, 4, 1)
    assert setting.sharding.gradient_bytes == 8  # float32, buckets of the replicas, and gradients of a micro-batch
    assert setting.shape.is_tied
    assert setting.shape.is_gated


@pytest.mark.parametrize(
    ("model", "experts", "expert_ffn", "has_latent"),
    [
        ("DeepSeekV3", "256", 2048, True),
        ("deepseek_v2", "160", 1536, True),
        ("Qwen3_30B_a3B", "128", 768, False),
        ("Mixtral-8x22B", "8", 8192, False),
    ],
)
def test_a_family_has_the_widths_that_no_column_has(part, table, model, experts, expert_ffn, has_latent):
    (run,) = part("row").read_rows(table({"model": model, "experts": experts, "topk": "2"}))
    shape = part("models").model_shape(run)
    assert shape.experts.ffn == expert_ffn
    assert bool(shape.latent) == has_latent


def test_a_test_of_megatron_has_its_flags(part, table):
    cells = {"id": "mlmci-1", "source": "github.com/NVIDIA/Megatron-LM", "note": "", "zero": "0"}
    (run,) = part("row").read_rows(table(cells | {"model": "gpt3_mcore_te_tp1_pp2_rope_embeddings"}))
    setting = part("setting").setting_of(run)
    assert (setting.sharding.attention, setting.sharding.has_fused_gradients) == ("unfused", False)
    assert not setting.shape.has_positions
    (other,) = part("row").read_rows(table(cells | {"model": "gpt3_unknown"}))
    assert part("setting").setting_of(other).shape.has_positions


def test_each_given_row_is_read_and_has_a_setting_or_fails_by_its_layout(part):
    runs = part("row").runs_of(part("row").read_rows(BENCHMARKS / "data" / "published_runs.csv"))
    assert len(runs) == 2109
    impossible = []
    for run in runs:
        try:
            assert part("setting").setting_of(run).num_gpus >= 1
        except part("cuts").ImpossibleLayoutError:
            impossible.append(run)
    assert len(impossible) == 175
    assert sum(not run.has_failed for run in impossible) <= 2


def test_rows_of_one_setting_are_in_one_half(part, table):
    changes = ({}, {"id": "nanotron-2", "micro_batch": "4", "iter_s": "3"}, {"id": "nanotron-3", "pp": "4", "dp": "2"})
    first, same, other = part("row").read_rows(table(*changes))
    assert first.is_fitted == same.is_fitted
    assert first.is_fitted != other.is_fitted  # the hash of the layout, whatever the process


def test_nanotron_fills_stages_by_cost_and_fails_if_the_loss_does_not_reach_the_last(part, table):
    def cut(pp, **cells):
        (run,) = part("row").read_rows(table({"pp": str(pp), "dp": "1", "n_gpus": ""} | cells))
        return part("setting").setting_of(run).cut

    # a block has 67.1 M weights, the head as many as 4 blocks: 20 in all
    assert cut(4).blocks == (5, 5, 5, 1)
    assert cut(4).bounds() == [(0, 6), (6, 11), (11, 16), (16, 18)]
    assert cut(8).blocks == (3, 2, 3, 2, 3, 2, 1, 0)
    assert cut(8).bounds()[5:] == [(14, 16), (16, 18), (18, 18)]
    with pytest.raises(part("cuts").ImpossibleLayoutError, match=r"pp is 16; .* fills only 15 stages"):
        cut(16)
    with pytest.raises(part("cuts").ImpossibleLayoutError, match="refuses fewer than pp - 1 = 7"):
        cut(8, global_batch="6", micro_batch="1")


@pytest.mark.parametrize(
    ("layers", "num_stages", "blocks"),
    [(16, 4, (4, 4, 4, 4)), (6, 4, (1, 2, 2, 1)), (9, 4, (3, 2, 2, 2)), (2, 4, (0, 1, 1, 0)), (3, 2, (2, 1))],
)
def test_equal_cuts_count_embedding_and_head_if_that_is_even(part, table, layers, num_stages, blocks):
    (run,) = part("row").read_rows(table({"layers": str(layers)}))
    assert part("cuts").cut_of(part("models").model_shape(run), num_stages, "equal").blocks == blocks


def test_deepspeed_fills_stages_in_turn(part, table):
    (run,) = part("row").read_rows(table({"layers": "78"}))
    shape = part("models").model_shape(run)
    assert part("cuts").cut_of(shape, 12, "filled").blocks == (*[7] * 11, 1)
    assert part("cuts").cut_of(shape, 6, "filled").blocks == (13,) * 6


def test_an_impossible_layout_is_predicted_to_fail(part, table):
    (row,) = part("row").read_rows(table({"pp": "16", "dp": "1", "n_gpus": ""}))
    prediction = part("prediction").predict(row)
    assert (prediction.predicted_s, prediction.fits) == (None, False)
    assert prediction.reason.startswith("fails: pp is 16")


def test_more_stages_lower_the_memory_and_raise_the_time(part, table):
    rows = part("row").read_rows(table({"pp": "1", "dp": "1", "n_gpus": "2"}, {"pp": "2", "dp": "1", "n_gpus": "4"}))
    whole, halved = map(part("estimate").estimate, map(part("setting").setting_of, rows))
    assert len(whole.peak_bytes) == 1
    assert len(halved.peak_bytes) == 2
    assert max(halved.peak_bytes) < whole.peak_bytes[0]
    assert whole.seconds / 2 < halved.seconds < whole.seconds


def compared(part, table, pairs, **cells):
    """Return rows with pairs of (predicted seconds, measured seconds)."""
    rows = part("row").read_rows(
        table(*({"id": f"nanotron-{index}", "iter_s": str(pair[1])} | cells for index, pair in enumerate(pairs)))
    )
    prediction = part("prediction").Prediction
    return [
        part("comparison").Compared(run, prediction(run.id, predicted, 33.0, True, ""))
        for run, (predicted, _) in zip(rows, pairs, strict=True)
    ]


def test_errors_are_summed_up_as_by_hand(part, table):
    rows = compared(part, table, [(1.1, 1), (0.8, 1), (1.3, 1), (4, 2), (1, 1)])
    summary = part("comparison").summary_of(row.time_error for row in rows)
    assert summary.count == 5
    assert summary.median_size == pytest.approx(0.2)  # of 0, 0.1, 0.2, 0.3, 1
    assert summary.ninth_size == pytest.approx(0.3 + 0.6 * 0.7)
    assert summary.median == pytest.approx(0.1)  # of -0.2, 0, 0.1, 0.3, 1
    assert part("comparison").summary_of([None]) is None
    assert rows[0].memory_error == pytest.approx(0.1)


def test_the_order_of_a_group_and_its_regret_are_as_by_hand(part, table):
    rows = compared(part, table, [(2, 1), (1, 3), (3, 4), (4, 5)])
    (group,) = part("comparison").groups_of(rows)
    assert group.count == 4
    assert group.correlation == pytest.approx(1 - 6 * 2 / (4 * 15))  # differences of ranks: 1, -1, 0, 0
    assert group.regret == pytest.approx(3 / 1 - 1)
    assert part("comparison").groups_of(rows[:2]) == []


def test_a_known_row_gives_its_factor_to_the_others_of_its_group(part, table):
    rows = compared(part, table, [(1, 2), (2, 4), (3, 4)])
    comparison = part("comparison")
    without, fitted = zip(*comparison.fitted_errors(rows, comparison.same_layout), strict=True)
    assert without == (-0.5, -0.25, -0.5, -0.25, -0.5, -0.5)
    assert fitted == pytest.approx((0, 0.5, 0, 0.5, -1 / 3, -1 / 3))
    assert comparison.fitted_errors(rows[:2], comparison.same_layout) == []
    other = compared(part, table, [(1, 2)], tp="4", dp="2")
    assert comparison.fitted_errors([*rows[:2], *other], comparison.same_layout) == []
    assert len(comparison.fitted_errors([*rows[:2], *other], comparison.same_setting)) == 6


def test_equal_times_share_a_rank_and_constant_times_have_no_correlation(part):
    correlation = part("comparison").rank_correlation
    assert correlation([1, 1, 2], [1, 2, 3]) == pytest.approx(3**0.5 / 2)
    assert correlation([1, 1, 1], [1, 2, 3]) is None


@pytest.mark.parametrize("note", ["time in the slow cluster (...)", "toy size, iter_s is launch-bound: use memory"])
def test_a_time_that_does_not_measure_its_setting_counts_for_memory_alone(part, table, note):
    (row,) = compared(part, table, [(2, 1)], note=note)
    assert row.time_error is None
    assert row.memory_error == pytest.approx(0.1)
    assert row.prediction.predicted_s == 2


def test_a_run_fits_or_fails_as_predicted(part, table):
    fitting, failing = (
        compared(part, table, [(1, 1)], **cells)[0] for cells in ({}, {"iter_s": "", "peak_gib_per_rank": "FAILED"})
    )
    assert fitting.is_fit_right
    assert failing.is_fit_right is False


def test_schedules_without_a_batch_are_compared_by_ratios(part, table):
    cells = {"iter_s": "", "source": "Primus", "note": "batch not printed"}
    rows = part("row").read_rows(
        table(
            cells | {"id": "primus-1", "schedule": "zb_h1", "tflops_per_gpu": "120"},
            cells | {"id": "primus-2", "schedule": "1f1b", "tflops_per_gpu": "100"},
        )
    )
    prediction = part("prediction").Prediction
    pairs = [
        part("comparison").Compared(run, prediction(run.id, seconds, None, None, ""))
        for run, seconds in zip(rows, (2.0, 2.2), strict=True)
    ]
    (ratio,) = part("comparison").schedule_ratios(pairs)
    assert (ratio.name, ratio.measured) == ("Llama-1B, zb_h1 to 1f1b", 1.2)
    assert ratio.predicted == pytest.approx(1.1)


def test_a_family_has_the_errors_of_its_rows_as_by_hand(part, table):
    times = compared(part, table, [(1.1, 1), (0.8, 1), (1.3, 1)])
    supposed = compared(part, table, [(9, 1)] * 3, micro_batch="")
    few = compared(part, table, [(1.1, 1)] * 2, gpu="B200")
    families = part("families").family_errors([*times, *supposed, *few])
    assert list(families) == ["H100"]
    errors = families["H100"]
    assert errors.gpus == ("h100",)
    assert (errors.time.count, errors.time.median, errors.time.ninth) == (3, 0.2, 0.28)
    assert (errors.memory.count, errors.memory.median) == (3, 0.1)
    lines = [*part("families").family_lines(families)]
    assert lines[-1] == "| H100 | h100 | 3 | 20.0% | 28.0% | 3 | 10.0% | 10.0% |"


def test_the_package_has_the_errors_by_family_of_the_page(part):
    families = estimate_errors()
    assert {"A100", "B200", "H100"} <= families.keys()
    assert families.keys() <= {load_gpu(name).family for name in gpu_names()}
    page = (BENCHMARKS / "results" / "published.md").read_text()
    assert "\n".join(part("families").family_lines(families)) in page
    assert part("families").errors_text(families) == ESTIMATE_ERRORS.read_text()


def test_a_part_of_the_rows_is_printed_without_a_page(part, table, tmp_path, monkeypatch, capsys):
    path = table({}, {"id": "nanotron-2"}, {"id": "foundry-1"})
    out = tmp_path / "page.md"
    monkeypatch.setattr(
        "sys.argv", ["published.py", "--rows", str(path), "--source", "nano", "--every", "2", "--out", str(out)]
    )
    assert importlib.import_module("published").main() == 0
    assert "| nanotron (Ultra-Scale Playbook) | 1 |" in capsys.readouterr().out
    assert not out.exists()


def test_a_part_without_rows_is_refused(part, table, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["published.py", "--rows", str(table({})), "--source", "nosuch"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("published").main()
    assert ended.value.code == 2
    assert "--source: got 'nosuch', no row of" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["published.py", "--rows", str(table({})), "--every", "0"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("published").main()
    assert ended.value.code == 2
    assert "--every: got 0, expected at least 1" in capsys.readouterr().err


def test_the_command_writes_the_page_and_a_prediction_for_each_row(part, table, tmp_path, monkeypatch, capsys):
    path = table({}, {"id": "nanotron-2", "layers": "many"}, {"id": "nanotron-3", "gpu": "abacus"})
    monkeypatch.setattr(
        "sys.argv",
        ["published.py", "--rows", str(path), "--json", str(tmp_path / "out.json"), "--out", str(tmp_path / "page.md")],
    )
    assert importlib.import_module("published").main() == 0
    predictions = json.loads((tmp_path / "out.json").read_text())
    assert [set(entry) for entry in predictions] == [{"id", "predicted_s", "predicted_peak_gib", "fits", "reason"}] * 3
    assert [entry["id"] for entry in predictions] == ["nanotron-1", "nanotron-2", "nanotron-3"]
    page = (tmp_path / "page.md").read_text()
    assert page == capsys.readouterr().out
    for heading in ("## Goals", "## Rows that were not fitted: errors by source", "## Software of each source"):
        assert heading in page
    assert "| 1 | nanotron-3 | cannot be predicted: gpu is 'abacus'" in page
