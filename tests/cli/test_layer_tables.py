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


def test_what_has_no_bytes_is_said(pipesched, table, folder):
    (folder / "seconds.csv").write_text("f,b\n1,2\n1,2\n")
    for line in ("plan seconds.csv -b 4 --devices 2 --microbatch-sizes 1", "partition seconds.csv -p 2"):
        said = " ".join(pipesched(line).out.split())
        assert "the profile has no bytes of messages, weights, activations: sending, summing and storing them" in said
    said = " ".join(pipesched(f"partition {table} -p 2").out.split())
    assert "the profile has no bytes of weights" in said
