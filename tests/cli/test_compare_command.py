"""``compare``: several schedules in one table."""

import csv
import io
import json
import re

import pytest

SPLIT = "--uniform f=1,i=1,w=1"
COLUMNS = [
    "name", "makespan_s", "makespan_p50_s", "makespan_p90_s", "makespan_p99_s", "bubble_fraction",
    "bubble_overhead", "bubble_of_longest_span", "throughput",
    "steady_s_per_microbatch", "steady_error",
    "steady_bubble_fraction",
    "peak_memory_worst_bytes", "peak_memory_best_bytes", "peak_microbatches_worst", "peak_microbatches_best",
    "weight_versions", "model_copies", "messages", "sent_bytes",
    "tokens_per_s", "flops_per_s", "utilization", "fits", "reason", "stage_share",
]  # fmt: skip


def rows_of(answer):
    assert (answer.code, answer.err) == (0, "")
    return {row["name"]: row for row in json.loads(answer.out)["schedules"]}


def test_every_schedule_that_can_be_run_is_in_the_table(pipesched):
    from pipesched.schedules.builders import CATALOGUE

    rows = rows_of(pipesched(f"compare --all -p 4 -m 8 {SPLIT} --json"))
    assert list(rows) == list(CATALOGUE)
    assert {row["reason"] for row in rows.values()} == {None}
    work_s = 8 * 3  # what one of four ranks has to do, however the model is cut and whoever does it
    for row in rows.values():
        assert list(row) == COLUMNS
        assert row["makespan_s"] >= work_s
        busy_s = row["makespan_s"] * (1 - row["bubble_fraction"])
        assert busy_s == pytest.approx(work_s)


def test_only_columns_that_are_shown_are_explained(pipesched, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    line = f"compare gpipe,zb_h1 -p 2 -m 4 {SPLIT}"
    narrow, wide = pipesched(line).out, pipesched(f"{line} --wide").out
    assert "bubble fraction: idle / (devices x makespan)" in narrow
    assert "busiest device" not in narrow
    assert "bubble overhead: (makespan - busiest device) / busiest device" in wide


def test_schedules_that_are_refused_for_one_reason_share_a_line(pipesched):
    table = pipesched("compare --all -p 2 -m 4 --uniform f=1,b=2 --wide").out
    words = " ".join(table.split())
    lines = [line for line in words.split("; try") if "splits the backward" in line]
    assert len(lines) == 1
    assert re.search(
        r"zb_h1, zb_h2, .*, v_min: got a schedule that splits the backward into I and W, but the costs .* have only B",
        lines[0],
    )
    assert "; give backward_input_s and backward_weight_s (i and w, or i_ms and w_ms), or --input-share 0.5" in words


def test_counts_beside_a_file_are_those_of_the_file_or_differ_with_a_note(pipesched):
    line = "compare mine.csv,gpipe --uniform f=1,b=2"
    answer = pipesched(line)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("pipesched: compare: got no -p and -m, expected counts")
    assert answer.err.endswith("; try -p 2 -m 3, as in mine.csv\n")
    note = "m = 3: mine; m = 4: gpipe; makespans of different batches are not comparable\n"
    assert note in pipesched(f"{line} -p 2 -m 4").out
    assert "not comparable" not in pipesched(f"{line} -p 2 -m 3").out


def test_a_table_is_printed_as_markdown_or_csv_and_written_as_either(pipesched, folder):
    line = f"compare gpipe,1f1b -p 2 -m 4 {SPLIT}"
    markdown, commas = (pipesched(f"{line} --format {form}").out for form in ("markdown", "csv"))
    assert markdown.splitlines()[2].startswith("| gpipe |")
    assert [row["name"] for row in csv.DictReader(io.StringIO(commas))] == ["gpipe", "1f1b"]
    for suffix in ("md", "csv", "json"):
        assert pipesched(f"{line} --out t.{suffix}").out == pipesched(line).out
    assert (folder / "t.md").read_text() == markdown
    assert (folder / "t.csv").read_text() == commas
    assert [row["name"] for row in json.loads((folder / "t.json").read_text())["schedules"]] == ["gpipe", "1f1b"]


def test_the_table_for_people_leaves_out_what_nobody_knows(pipesched):
    blind = pipesched(f"compare gpipe,1f1b -p 2 -m 4 {SPLIT}").out
    seeing = pipesched("compare gpipe,1f1b -p 2 -m 4 --uniform f=1,b=2,weight_bytes=1e9 --memory-limit 1GB").out
    assert ("peak memory" in blind.splitlines()[2], "fits" in blind.splitlines()[2]) == (False, False)
    assert "fits" in seeing
    assert "│ no" in seeing


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (f"compare gpipe,1f1b -p 2 -m 4 {SPLIT}", "a.html a.md a.csv"),
        (f"simulate -s gpipe -p 2 -m 4 {SPLIT}", "a.json a.html"),
        (f"sweep -s gpipe,1f1b -p 2 -m 4 --workers 1 {SPLIT}", "a.csv a.md"),
    ],
)
def test_several_files_are_all_written_and_the_table_is_printed_all_the_same(pipesched, folder, line, names):
    printed = pipesched(line).out
    answer = pipesched(f"{line} {' '.join(f'--out {name}' for name in names.split())}")
    assert (answer.code, answer.out) == (0, printed)
    assert all((folder / name).stat().st_size for name in names.split())
