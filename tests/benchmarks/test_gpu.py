"""The benchmark on a GPU: its plain loop finds wrong weights; a row that fails or has no time leaves the others."""

import math
import re
import subprocess
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_rows import whole_model

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
MARK = "pytest.mark." + "gpu"


@pytest.fixture
def gpu(rows):
    return rows("gpu")


@pytest.fixture
def card(gpu):
    return gpu.Card("cpu", time.monotonic() + 1000)


@pytest.mark.parametrize("name", ["zbv", "wpipe"])
def test_a_schedule_trains_as_the_plain_loop_does_bit_for_bit(name):
    assert whole_model.compare(name, 2, CPU).largest == 0


def test_the_plain_loop_differs_where_weights_are_of_another_version(monkeypatch):
    monkeypatch.setattr(whole_model, "_rule_of", lambda name, num_ranks: (lambda k, i: i, 1))
    difference = whole_model.compare("pipedream", 2, CPU)
    assert min(difference.losses, difference.gradients, difference.weights) > 10 * whole_model.TOLERANCE


def test_gradients_that_are_no_numbers_differ():
    nothing = [torch.tensor([1.0, math.nan])]
    assert whole_model._difference(nothing, [torch.ones(2)]) == math.inf


def test_a_row_that_fails_has_its_error_in_its_place(gpu, card):
    def lines(card):
        yield "before"
        raise ValueError("no such\nkernel")

    row = gpu.Row("Title", "goal", 10.0, lines)
    page = list(gpu.section("name", row, card, ""))
    assert page[0] == "# Title"
    assert page[page.index("before") + 1] == "\n**Failed.** ValueError: no such kernel"


def test_a_row_without_time_is_skipped_with_a_line(gpu, card):
    row = gpu.Row("Title", "goal", 10.0, lambda card: pytest.fail("it begins"))
    late = gpu.Card("cpu", time.monotonic() + 1)
    assert {"Skipped: 1 s were left.", "Skipped: 0 s were left."} & {*gpu.section("name", row, late, "")}


def test_a_case_that_fails_or_finds_no_time_has_its_reason_in_its_row(gpu, card):
    def measure(case):
        if case == "bad":
            raise ValueError("a | b")
        return f"| {case} | 7 |"

    assert list(card.rows(["good", "bad", "last"], measure, 1.0)) == [
        "| good | 7 |",
        "| bad | failed: ValueError: a / b |",
        "| last | 7 |",
    ]
    late = gpu.Card("cpu", time.monotonic())
    assert list(late.rows(["good"], measure, 1.0)) == ["| good | skipped: 0 s left |"]


def test_a_dry_run_is_written_to_the_folder_that_is_not_committed(gpu, card):
    assert gpu.file_of(card, ROOT) == ROOT / "build" / "gpu-dry-run.md"
    assert "build" in (ROOT / ".gitignore").read_text()


def test_the_page_of_a_card_has_its_name(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    page = gpu.file_of(gpu.Card("cuda", 0.0), ROOT)
    assert page == ROOT / "benchmarks" / "results" / "gpu-h100-80gb-hbm3.md"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rows", "equal,speed"], "--rows: got speed, expected some of equal, makespan, memory,"),
        (["--minutes", "0"], "--minutes: got 0, expected a number above 0, and at most 60"),
        ([], "no GPU: torch.cuda.is_available() is false; try --dry-run"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_line(gpu, arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "sheet"),
    [("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100"), ("Xeon", None)],
)
def test_the_data_sheet_of_a_card_is_found_by_its_name(rows, device, sheet):
    assert rows("gpu_rows.shapes").sheet_of(device) == sheet


@pytest.mark.parametrize(("settings", "python"), [([], ".venv/bin/python"), (["BIN=nowhere"], "python3")])
def test_make_gpu_runs_the_tests_and_then_the_benchmark_and_installs_nothing(settings, python):
    if not settings and not (ROOT / ".venv").exists():
        pytest.skip("there is no .venv")
    said = subprocess.run(["make", "-n", "gpu", *settings], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tests, benchmark = said.replace("\\\n", " ").split("; tests=$?;")
    assert f"{python} -m pytest -c tests/gpu/pytest.ini -m gpu " in tests
    marked = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py") if MARK in path.read_text()}
    assert marked == set(re.findall(r"tests/\S+\.py", tests))
    assert f"{python} benchmarks/gpu.py --minutes 7" in benchmark
    assert "install" not in said


def test_ci_needs_no_gpu():
    assert "gpu" not in (ROOT / ".ci" / "run").read_text()
