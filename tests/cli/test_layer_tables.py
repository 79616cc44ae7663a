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
    rows = {row["microbatches"]: row for row in tuned["settings"] if row["schedule"] == "1f1b"}
    assert sorted(rows) == [1, 2, 4]
    for count, row in rows.items():
        batch_s = (count + 1) * 12 * 2 / count  # (m + p - 1) t
        assert row["seconds_per_batch"] == pytest.approx(batch_s)
        assert row["steady_s_per_microbatch"] == pytest.approx(batch_s / count)
    zero_bubble = json.loads(pipesched("tune rows.json -p 2 -b 4 -n 1 -s zb_h1 -m 1 --input-share 0.25 --json").out)
    (row,) = (row for row in zero_bubble["settings"] if row["schedule"] == "zb_h1")
    # F of both ranks, I of rank 1, a quarter of its B, and all of B of rank 0, each of 4 samples
    assert row["seconds_per_batch"] == pytest.approx(2 * (4 + 4 + 0.25 * 8 + 8))
    assert "--profile rows.json --input-share 0.25" in zero_bubble["commands"]["run"]


def test_what_has_no_bytes_is_said(pipesched, table, folder):
    (folder / "seconds.csv").write_text("f,b\n1,2\n1,2\n")
    for line in ("plan seconds.csv -b 4 --devices 2 --microbatch-sizes 1", "partition seconds.csv -p 2"):
        said = " ".join(pipesched(line).out.split())
        assert "the profile has no bytes of messages, weights, activations: sending, summing and storing them" in said
    said = " ".join(pipesched(f"partition {table} -p 2").out.split())
    assert "the profile has no bytes of weights" in said
