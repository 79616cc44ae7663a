"""Predictions beside published runs: rows, their settings, and statistics against values by hand."""

import csv
import importlib
import json

import pytest

from pipesched.profiles.io import ESTIMATE_ERRORS, estimate_errors, gpu_names, load_gpu
from tests.benchmarks.conftest import BENCHMARKS

ROWS = "published_rows."
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
def table(rows, tmp_path):
    """Return a function that writes rows, given as changed cells, and returns the path."""
    columns = rows("row").COLUMNS

    def write(*changes):
        path = tmp_path / "runs.csv"
        with path.open("w", newline="") as lines:
            writer = csv.DictWriter(lines, columns, restval="")
            writer.writeheader()
            writer.writerows(CELLS | cells for cells in changes)
        return path

    return write


@pytest.fixture
def read(rows, table):
    """Return a function that writes rows and reads them."""
    return lambda *changes: rows("row").read_rows(table(*changes))


@pytest.fixture
def setting_of(rows, read):
    """Return a function from changed cells to the setting of a row."""
    return lambda cells: rows("setting").setting_of(*read(cells))


@pytest.fixture
def shape_of(rows, read):
    """Return a function from changed cells to the model of a row."""
    return lambda cells: rows("models").model_shape(*read(cells))


def test_a_row_has_typed_columns_and_a_failed_run_no_peak(read):
    run, *failed = read({}, *({"peak_gib_per_rank": word, "iter_s": ""} for word in ("FAILED", "OOM")))
    assert (run.n_gpus, run.iter_s, run.peak_gib, run.experts, run.cp, run.vpp) == (16, 2.0, 30.0, None, 1, 1)
    assert not run.has_failed
    assert [(run.has_failed, run.peak_gib) for run in failed] == [(True, None)] * 2


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
def test_a_row_that_cannot_be_read_has_a_reason_and_the_others_are_predicted(rows, read, cells, reason):
    bad, good = map(rows("prediction").predict, read(cells, {"id": "nanotron-2"}))
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
def test_a_row_that_cannot_be_predicted_has_a_reason(rows, read, cells, reason):
    (row,) = read(cells)
    assert rows("prediction").predict(row).reason.startswith(f"cannot be predicted: {reason}")


def test_a_table_without_rows_or_columns_is_refused(rows, read, tmp_path):
    with pytest.raises(ValueError, match="has no rows"):
        read()
    (tmp_path / "other.csv").write_text("id,source\n1,2\n")
    with pytest.raises(ValueError, match="lacks the columns gpu, n_gpus"):
        rows("row").read_rows(tmp_path / "other.csv")


def test_the_setting_of_a_row_follows_from_its_columns_and_its_trainer(setting_of):
    setting = setting_of({})
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
def test_a_family_has_the_widths_that_no_column_has(shape_of, model, experts, expert_ffn, has_latent):
    shape = shape_of({"model": model, "experts": experts, "topk": "2"})
    assert (shape.experts.ffn, bool(shape.latent)) == (expert_ffn, has_latent)


def test_a_test_of_megatron_has_its_flags(setting_of):
    cells = {"id": "mlmci-1", "source": "github.com/NVIDIA/Megatron-LM", "note": "", "zero": "0"}
    setting = setting_of(cells | {"model": "gpt3_mcore_te_tp1_pp2_rope_embeddings"})
    assert (setting.sharding.attention, setting.sharding.has_fused_gradients) == ("unfused", False)
    assert not setting.shape.has_positions
    assert setting_of(cells | {"model": "gpt3_unknown"}).shape.has_positions


def test_each_given_row_is_read_and_has_a_setting_or_fails_by_its_layout(rows):
    runs = rows("row").runs_of(rows("row").read_rows(BENCHMARKS / "data" / "published_runs.csv"))
    assert len(runs) == 2109
    impossible = []
    for run in runs:
        try:
            assert rows("setting").setting_of(run).num_gpus >= 1
        except rows("cuts").ImpossibleLayoutError:
            impossible.append(run)
    assert len(impossible) == 175
    assert sum(not run.has_failed for run in impossible) <= 2


def test_rows_of_one_setting_are_in_one_half(rows, read):
    changes = ({}, {"id": "nanotron-2", "micro_batch": "4", "iter_s": "3"}, {"id": "nanotron-3", "pp": "4", "dp": "2"})
    first, same, other = read(*changes)
    assert first.is_fitted == same.is_fitted
    assert first.is_fitted != other.is_fitted  # the hash of the layout, whatever the process


def test_nanotron_fills_stages_by_cost_and_fails_if_the_loss_does_not_reach_the_last(rows, setting_of):
    def cut(pp, **cells):
        return setting_of({"pp": str(pp), "dp": "1", "n_gpus": ""} | cells).cut

    # a block has 67.1 M weights, the head as many as 4 blocks: 20 in all
    assert cut(4).blocks == (5, 5, 5, 1)
    assert cut(4).bounds() == [(0, 6), (6, 11), (11, 16), (16, 18)]
    assert cut(8).blocks == (3, 2, 3, 2, 3, 2, 1, 0)
    assert cut(8).bounds()[5:] == [(14, 16), (16, 18), (18, 18)]
    with pytest.raises(rows("cuts").ImpossibleLayoutError, match=r"pp is 16; .* fills only 15 stages"):
        cut(16)
    with pytest.raises(rows("cuts").ImpossibleLayoutError, match="refuses fewer than pp - 1 = 7"):
        cut(8, global_batch="6", micro_batch="1")


@pytest.mark.parametrize(
    ("layers", "num_stages", "blocks"),
    [(16, 4, (4, 4, 4, 4)), (6, 4, (1, 2, 2, 1)), (9, 4, (3, 2, 2, 2)), (2, 4, (0, 1, 1, 0)), (3, 2, (2, 1))],
)
def test_equal_cuts_count_embedding_and_head_if_that_is_even(rows, shape_of, layers, num_stages, blocks):
    assert rows("cuts").cut_of(shape_of({"layers": str(layers)}), num_stages, "equal").blocks == blocks


def test_deepspeed_fills_stages_in_turn(rows, shape_of):
    shape = shape_of({"layers": "78"})
    assert rows("cuts").cut_of(shape, 12, "filled").blocks == (*[7] * 11, 1)
    assert rows("cuts").cut_of(shape, 6, "filled").blocks == (13,) * 6


def test_an_impossible_layout_is_predicted_to_fail(rows, read):
    prediction = rows("prediction").predict(*read({"pp": "16", "dp": "1", "n_gpus": ""}))
    assert (prediction.predicted_s, prediction.fits) == (None, False)
    assert prediction.reason.startswith("fails: pp is 16")


def test_more_stages_lower_the_memory_and_raise_the_time(rows, setting_of):
    layouts = ({"pp": "1", "dp": "1", "n_gpus": "2"}, {"pp": "2", "dp": "1", "n_gpus": "4"})
    whole, halved = map(rows("estimate").estimate, map(setting_of, layouts))
    assert (len(whole.peak_bytes), len(halved.peak_bytes)) == (1, 2)
    assert max(halved.peak_bytes) < whole.peak_bytes[0]
    assert whole.seconds / 2 < halved.seconds < whole.seconds


@pytest.fixture
def comparison(rows):
    return rows("comparison")


@pytest.fixture
def compared(rows, read, comparison):
    """Return a function from pairs of (predicted seconds, measured seconds) to compared rows."""

    def compare(*pairs, **cells):
        runs = read(*({"id": f"nanotron-{index}", "iter_s": str(pair[1])} | cells for index, pair in enumerate(pairs)))
        prediction = rows("prediction").Prediction
        return [
            comparison.Compared(run, prediction(run.id, predicted, 33.0, True, ""))
            for run, (predicted, _) in zip(runs, pairs, strict=True)
        ]

    return compare


def test_errors_are_summed_up_as_by_hand(comparison, compared):
    runs = compared((1.1, 1), (0.8, 1), (1.3, 1), (4, 2), (1, 1))
    summary = comparison.summary_of(run.time_error for run in runs)
    assert summary.count == 5
    assert summary.median_size == pytest.approx(0.2)  # of 0, 0.1, 0.2, 0.3, 1
    assert summary.ninth_size == pytest.approx(0.3 + 0.6 * 0.7)
    assert summary.median == pytest.approx(0.1)  # of -0.2, 0, 0.1, 0.3, 1
    assert comparison.summary_of([None]) is None
    assert runs[0].memory_error == pytest.approx(0.1)


def test_the_order_of_a_group_and_its_regret_are_as_by_hand(comparison, compared):
    runs = compared((2, 1), (1, 3), (3, 4), (4, 5))
    (group,) = comparison.groups_of(runs)
    assert group.count == 4
    assert group.correlation == pytest.approx(1 - 6 * 2 / (4 * 15))  # differences of ranks: 1, -1, 0, 0
    assert group.regret == pytest.approx(3 / 1 - 1)
    assert comparison.groups_of(runs[:2]) == []


def test_a_known_row_gives_its_factor_to_the_others_of_its_group(comparison, compared):
    runs = compared((1, 2), (2, 4), (3, 4))
    without, fitted = zip(*comparison.fitted_errors(runs, comparison.same_layout), strict=True)
    assert without == (-0.5, -0.25, -0.5, -0.25, -0.5, -0.5)
    assert fitted == pytest.approx((0, 0.5, 0, 0.5, -1 / 3, -1 / 3))
    assert comparison.fitted_errors(runs[:2], comparison.same_layout) == []
    others = [*runs[:2], *compared((1, 2), tp="4", dp="2")]
    assert comparison.fitted_errors(others, comparison.same_layout) == []
    assert len(comparison.fitted_errors(others, comparison.same_setting)) == 6


@pytest.mark.parametrize("note", ["time in the slow cluster (...)", "toy size, iter_s is launch-bound: use memory"])
def test_a_time_that_does_not_measure_its_setting_counts_for_memory_alone(compared, note):
    (run,) = compared((2, 1), note=note)
    assert (run.time_error, run.memory_error) == (None, pytest.approx(0.1))
    assert run.prediction.predicted_s == 2


def test_a_run_fits_or_fails_as_predicted(compared):
    runs = [*compared((1, 1)), *compared((1, 1), iter_s="", peak_gib_per_rank="FAILED")]
    assert [run.is_fit_right for run in runs] == [True, False]


def test_schedules_without_a_batch_are_compared_by_ratios(comparison, compared):
    cells = {"iter_s": "", "source": "Primus", "note": "batch not printed"}
    pairs = [
        *compared((2.0, 0), **cells, id="primus-1", schedule="zb_h1", tflops_per_gpu="120"),
        *compared((2.2, 0), **cells, id="primus-2", schedule="1f1b", tflops_per_gpu="100"),
    ]
    (ratio,) = comparison.schedule_ratios(pairs)
    assert (ratio.name, ratio.measured) == ("Llama-1B, zb_h1 to 1f1b", 1.2)
    assert ratio.predicted == pytest.approx(1.1)


def test_a_family_has_the_errors_of_its_rows_as_by_hand(rows, compared):
    times = compared((1.1, 1), (0.8, 1), (1.3, 1))
    supposed = compared((9, 1), (9, 1), (9, 1), micro_batch="")
    few = compared((1.1, 1), (1.1, 1), gpu="B200")
    families = rows("families").family_errors([*times, *supposed, *few])
    assert list(families) == ["H100"]
    errors = families["H100"]
    assert errors.gpus == ("h100",)
    assert (errors.time.count, errors.time.median, errors.time.ninth) == (3, 0.2, 0.28)
    assert (errors.memory.count, errors.memory.median) == (3, 0.1)
    lines = [*rows("families").family_lines(families)]
    assert lines[-1] == "| H100 | h100 | 3 | 20.0% | 28.0% | 3 | 10.0% | 10.0% |"


def test_the_package_has_the_errors_by_family_of_the_page(rows):
    families = estimate_errors()
    assert {"A100", "B200", "H100"} <= families.keys()
    assert families.keys() <= {load_gpu(name).family for name in gpu_names()}
    page = (BENCHMARKS / "results" / "published.md").read_text()
    assert "\n".join(rows("families").family_lines(families)) in page
    assert rows("families").errors_text(families) == ESTIMATE_ERRORS.read_text()


@pytest.fixture
def command(rows, table, monkeypatch, capsys):
    """Return a function that runs the command with some rows, and returns its exit code, stdout and stderr."""

    def run(*changes, options):
        monkeypatch.setattr("sys.argv", ["published.py", "--rows", str(table(*changes)), *options.split()])
        try:
            code = importlib.import_module("published").main()
        except SystemExit as ended:
            code = ended.code
        return code, *capsys.readouterr()

    return run


def test_a_part_of_the_rows_is_printed_without_a_page(command, tmp_path):
    page = tmp_path / "page.md"
    code, out, _ = command(
        {}, {"id": "nanotron-2"}, {"id": "foundry-1"}, options=f"--source nano --every 2 --out {page}"
    )
    assert code == 0
    assert "| nanotron (Ultra-Scale Playbook) | 1 |" in out
    assert not page.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [("--source nosuch", "--source: got 'nosuch', no row of"), ("--every 0", "--every: got 0, expected at least 1")],
)
def test_a_part_without_rows_is_refused(command, options, said):
    code, _, err = command({}, options=options)
    assert code == 2
    assert said in err


def test_the_command_writes_the_page_and_a_prediction_for_each_row(command, tmp_path):
    written, page = tmp_path / "out.json", tmp_path / "page.md"
    changes = ({}, {"id": "nanotron-2", "layers": "many"}, {"id": "nanotron-3", "gpu": "abacus"})
    code, out, _ = command(*changes, options=f"--json {written} --out {page}")
    assert code == 0
    predictions = json.loads(written.read_text())
    assert [set(entry) for entry in predictions] == [{"id", "predicted_s", "predicted_peak_gib", "fits", "reason"}] * 3
    assert [entry["id"] for entry in predictions] == ["nanotron-1", "nanotron-2", "nanotron-3"]
    assert page.read_text() == out
    for heading in ("## Goals", "## Rows that were not fitted: errors by source", "## Software of each source"):
        assert heading in out
    assert "| 1 | nanotron-3 | cannot be predicted: gpu is 'abacus'" in out
