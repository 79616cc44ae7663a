"""Tables of layers where a profile is asked for: ``profile --layer-costs``, ``plan``, ``partition``, ``what-if``."""

import json

import pytest

ROWS = [(1, 2), (3, 6), (2, 4), (2, 4)]


@pytest.fixture
def table(folder):
    lines = ["forward_s,backward_s,output_bytes", *(f"{forward},{backward},8" for forward, backward in ROWS)]
    (folder / "rows.csv").write_text("\n".join(lines))
    return "rows.csv"


def test_a_table_becomes_a_profile_that_the_tuner_takes(pipesched, table):
    line = f"profile --layer-costs {table} --microbatch-size 2 --microbatch-sizes 1,4"
    assert pipesched(f"{line} --out rows.json").code == 0
    tuned = json.loads(pipesched("tune rows.json -p 2 -b 4 -n 1 --json").out)
    seconds = {row["microbatches"]: row["seconds_per_batch"] for row in tuned["settings"] if row["schedule"] == "1f1b"}
    assert seconds == {count: pytest.approx((count + 1) * 12 * 2 / count) for count in (1, 2, 4)}, "(m + p - 1) t"


def test_where_i_and_w_are_not_known_a_share_of_b_is_supposed_and_else_that_is_told_once(pipesched, table):
    """Of one micro-batch of 4 samples I of rank 1 comes between its F and all of the backward of rank 0, which is W."""
    assert pipesched(f"profile --layer-costs {table} --microbatch-size 2 --microbatch-sizes 1,4 --out p.json").code == 0
    assert pipesched("tune p.json -p 2 -b 4 -n 1 -s zb_h1").out.count("--input-share") == 1
    tuned = json.loads(pipesched("tune p.json -p 2 -b 4 -n 1 -s zb_h1 -m 1 --input-share 0.25 --json").out)
    seconds = {row["schedule"]: row["seconds_per_batch"] for row in tuned["settings"]}
    assert seconds["zb_h1"] == pytest.approx(2 * (4 + 4 + 0.25 * 8 + 8))
    assert "--profile p.json --input-share 0.25" in tuned["commands"]["run"]
    again = (
        f"profile --layer-costs {table} --microbatch-size 2 --microbatch-sizes 4 --input-share 0.25 --out again.json"
    )
    assert pipesched(again).code == 0
    assert pipesched("plan again.json -b 4 --devices 2 --depth 2 -s zb_h1 --recompute no").code == 0


def test_a_table_is_planned_with_at_the_size_that_it_is_of(pipesched, table):
    answer = pipesched(
        f"plan {table} -b 8 --devices 2 --depth 2 -s gpipe --microbatch-sizes 2 --recompute no --out p.json"
    )
    plan = json.loads(pipesched("show --plan p.json --format json").out)
    assert answer.code == 0
    assert plan["num_microbatches"] == 4
    simulated = json.loads(pipesched(f"simulate --plan p.json --layer-costs {table} --json").out)
    assert simulated["makespan_s"] == (4 + 1) * 12


def test_what_has_no_bytes_is_said(pipesched, table, folder):
    (folder / "seconds.csv").write_text("f,b\n1,2\n1,2\n")
    for line in ("plan seconds.csv -b 4 --devices 2 --microbatch-sizes 1", "partition seconds.csv -p 2"):
        said = " ".join(pipesched(line).out.split())
        assert "no bytes of messages, weights, activations are known: sending, summing and holding them counts" in said
    said = " ".join(pipesched(f"partition {table} -p 2").out.split())
    assert "no bytes of weights are known" in said
