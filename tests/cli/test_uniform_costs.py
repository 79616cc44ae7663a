"""``--uniform``: what a device holds of the model, shared among its stages, in every command alike."""

from collections import Counter

import pytest

from pipesched.cli.options.cost_options import uniform_costs
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.ops import Phase, computes
from pipesched.schedules.transforms import replicate
from tests.cli.json_answers import data

P, M, V = 8, 64, 4
CHUNKS = f"-p {P} -m {M} -v {V} --uniform f=1,b=2"
MAKESPAN_S = (M + (P - 1) / V) * (1 + 2)
"""Of interleaved 1F1B: arXiv:2104.04473, section 2.2."""


@pytest.mark.slow
def test_chunks_take_their_share_in_simulate_compare_and_gantt_alike(pipesched):
    assert MAKESPAN_S == 197.25
    alone = data(pipesched, f"simulate -s interleaved {CHUNKS}")
    (row,) = data(pipesched, f"compare interleaved {CHUNKS}")["schedules"]
    assert alone["makespan_s"] == row["makespan_s"] == MAKESPAN_S
    assert alone["stage_share"] == row["stage_share"] == 1 / V
    lines = [f"simulate -s interleaved {CHUNKS}", f"compare interleaved {CHUNKS}", f"gantt -s interleaved {CHUNKS}"]
    for line in lines:
        text = pipesched(line).out
        assert "197.2 s" in text
        assert "each of the 4 stages of a device: f 250 ms, b 500 ms\n" in text


def test_nothing_is_said_of_shares_where_every_device_has_one_stage(pipesched):
    assert data(pipesched, "simulate -s 1f1b -p 4 -m 8 --uniform f=1,b=2")["stage_share"] == 1
    assert data(pipesched, "simulate -f mine.csv --stage-costs stages.csv")["stage_share"] is None
    assert "stages of a device" not in pipesched("compare gpipe,1f1b -p 4 -m 8 --uniform f=1,b=2").out


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_the_devices_of_a_copy_have_the_same_work_together_under_every_schedule(name, width):
    """m micro-batches, each of p shares of 1 s for F, I and W, or 2 s for B: every device has one p-th of that."""
    p, m = 4, 8
    if width > 1 and CATALOGUE[name].traits.averages:
        return  # its pipelines are no equal copies
    schedule = replicate(build(name, p, m), width)
    costs = uniform_costs("f=1,i=1,w=1").stage_costs(schedule)
    seconds = {Phase.BACKWARD: 2.0}
    busy_s = Counter(dict.fromkeys(schedule.rank_to_device, 0.0))
    for rank, row in enumerate(schedule.ops):
        for part in (part for op in row for part in computes(op)):
            busy_s[schedule.rank_to_device[rank]] += seconds.get(part.phase, 1.0) * costs.stages[part.stage].forward_s
    assert len(busy_s) == width * p
    assert sum(busy_s.values()) == pytest.approx(width * p * m * 3.0, rel=1e-12)
    if name != "1f1b_rr":  # whose replicas share the work of a stage, and others have a whole one
        assert list(busy_s.values()) == [m * 3.0] * width * p


@pytest.mark.parametrize("options", ["-s 1f1b -p 2 -m 4 --width 3", "-s data_parallel -p 4 -m 8", "-s wpipe -p 4 -m 8"])
def test_a_schedule_costs_the_same_from_a_file(pipesched, folder, options):
    assert pipesched(f"show {options} --out lists.json").code == 0
    built, read = (data(pipesched, f"simulate {source} --uniform f=1,b=2") for source in (options, "-f lists.json"))
    assert built == read


def test_a_file_of_copies_that_cannot_be_is_refused(pipesched, folder):
    pipesched("show -s 1f1b -p 2 -m 4 --width 3 --out lists.json")
    text = (folder / "lists.json").read_text()
    assert '"width": 3' in text
    for wrong in ("4", "0", "-1", '"3"', "true"):
        (folder / "lists.json").write_text(text.replace('"width": 3', f'"width": {wrong}'))
        answer = pipesched("simulate -f lists.json --uniform f=1,b=2")
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
        assert "width" in answer.err


def test_a_training_run_shares_what_a_batch_costs_too(pipesched):
    """A batch of eight micro-batches, each of an eighth of what it costs; of two copies each has four of them."""
    line = "train mlp:layers=8,width=4 -p 4 -m 8 --batch-size 8 --steps 1 --uniform f=1,b=2"
    forecast = data(pipesched, f"{line} -s interleaved")
    assert forecast["runs"][0]["run_s"] == pytest.approx((8 + 3 / 2) * 3 / 8, rel=1e-12)
    assert "interleaved: costs of each of the 2 stages of a device: f 500 ms, b 1 s" in forecast["costs"]
    wide = data(pipesched, f"{line} -s 1f1b --width 2".replace("-m 8", "-m 4"))
    assert wide["runs"][0]["run_s"] == pytest.approx((4 + 3) * 3 / 8, rel=1e-12)
