"""``pipesched sweep``: lists and ranges in, a table of all settings out."""

import csv
import json

import pytest

from tests.cli.json_answers import data

COSTS = "--uniform f=1ms,i=1ms,w=1ms,saved_bytes=1MB,output_bytes=8KB"
LINE = f"sweep -s 1f1b,interleaved,zbv -p 2,4 -m 4:16:x2 -v 1,2 {COSTS} --link bandwidth=1MB/s,1GB/s"


def test_every_setting_is_in_the_file_and_agrees_with_simulate(pipesched, folder):
    answer = pipesched(f"{LINE} --out all.csv")
    assert (answer.code, answer.out, answer.err) == (0, pipesched(LINE).out, "")
    with (folder / "all.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == (1 + 2 + 1) * 2 * 3 * 2
    for row in rows[:2] + rows[-2:]:
        chunks = f"-v {row['num_chunks']}" if row["num_chunks"] else ""
        link = f"--link bandwidth_bytes_per_s={row['bandwidth_bytes_per_s']}"
        counted = f"-p {row['num_ranks']} -m {row['num_microbatches']} {chunks}"
        simulated = data(pipesched, f"simulate -s {row['schedule']} {counted} {COSTS} {link}")
        for name in ("makespan_s", "bubble_fraction", "steady_s_per_microbatch", "steady_bubble_fraction"):
            assert float(row[name]) == pytest.approx(simulated[name], rel=1e-9, abs=1e-9)


def test_the_same_goes_to_json_parquet_and_markdown(pipesched, folder):
    answer = data(pipesched, LINE)
    assert answer["best"] == answer["settings"][0]
    assert answer["best"]["s_per_microbatch"] == min(row["s_per_microbatch"] for row in answer["settings"])
    for suffix in ("json", "parquet", "md"):
        assert pipesched(f"{LINE} --out all.{suffix}").code == 0
    assert json.loads((folder / "all.json").read_text()) == answer
    import pandas as pd

    assert len(pd.read_parquet(folder / "all.parquet")) == len(answer["settings"])


def test_the_table_fits_80_columns_and_says_what_is_left_out(pipesched, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = pipesched(f"sweep -s 1f1b,dualpipe -p 3,4 -m 8 {COSTS} --top 1 --memory-limit 1GB").out
    assert "4 settings, 1 invalid, best by s_per_microbatch" in out
    assert "2 more that fit are left out (--top, --out)" in out
    assert "memory limit 1 GB (953.7 MiB) of every device" in out
    assert "dualpipe: 1 invalid: got 3 ranks" in out


def test_where_nothing_fits_the_answer_is_no(pipesched):
    answer = pipesched(f"sweep -s 1f1b -p 2 -m 4 {COSTS} --memory-limit 1KB --json")
    assert answer.code == 1
    assert answer.err.endswith("nothing fits into 1 KB (1000 B); try --recompute both\n")
    assert json.loads(answer.out)["best"] is None
    both = pipesched(f"sweep -s 1f1b -p 2 -m 4 {COSTS} --memory-limit 1KB --recompute both")
    assert both.err.endswith("; try more ranks (-p)\n")


def test_a_page_says_what_is_over_memory_in_the_unit_of_tables(pipesched, folder):
    line = "sweep -s gpipe -p 2 -m 4 --uniform f=1ms,b=2ms,saved_bytes=2MiB --memory-limit 3MiB"
    pipesched(f"{line} --out all.html")
    page = (folder / "all.html").read_text()
    assert "over memory: device 0 holds 8 MiB of 3 MiB" in page
    assert "bytes of" not in page


def test_layers_that_are_cut_unevenly_are_told_below_the_table(pipesched, folder):
    (folder / "even.csv").write_text("f,b\n" + "1,2\n" * 24)
    out = pipesched("sweep -s 1f1b,interleaved -p 8 -m 8,16 -v 2 --layer-costs even.csv").out
    assert out.count("layers on") == 1
    assert "interleaved: v = 2, 24 layers on 16 stages: 8 of 2, 8 of 1; v = 3 would be even\n" in out


def test_parameters_and_a_builder_of_ones_own_are_swept_too(pipesched):
    rows = data(pipesched, f"sweep -s avgpipe,1f1b -p 2 -m 4 {COSTS} --set pipelines=1,2,advance=0:2")["settings"]
    assert len(rows) == 6 + 1
    assert {(row["pipelines"], row["advance"]) for row in rows} >= {(1, 0), (2, 2), (None, None)}
