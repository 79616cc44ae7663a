"""``pipesched optimize``, and ``simulate --bound``."""

from tests.cli.json_answers import data

COSTS = "--uniform f=1,i=1,w=1"


def test_a_table_has_the_optimum_above_the_known_orders_and_says_what_is_proven(pipesched, folder):
    answer = pipesched(f"optimize -s 1f1b -p 2 -m 4 --split {COSTS} --workers 1 --out best.csv --gantt best.html")
    assert (answer.code, answer.err) == (0, "")
    assert "optimum" in answer.out.splitlines()[4]
    assert "proven" in answer.out
    assert pipesched("check -f best.csv").code == 0
    again = data(pipesched, f"simulate -f best.csv {COSTS} --bound 0")
    assert again["least"]["gap"] == 0
    assert (folder / "best.html").stat().st_size > 0


def test_data_say_bound_gap_and_orders(pipesched):
    answer = data(pipesched, f"optimize -s zb_h1 -p 2 -m 4 --seconds 0 {COSTS}")
    assert answer["bound_s"] <= answer["makespan_s"] <= answer["orders"][-1]["makespan_s"]
    assert answer["period_s"] is None
    assert {"1f1b", "zb_h1"} <= {order["name"] for order in answer["orders"]}


def test_a_repeated_batch_has_a_period_and_stages_may_recompute(pipesched):
    """With room for one micro-batch, stage 0 keeps inputs, which take nothing here, of two: four times F, R and B."""
    costs = "--uniform f=1,b=2,saved_bytes=1e9 --in-flight 1 --seconds 0"
    answer = data(pipesched, f"optimize -s 1f1b -p 2 -m 4 --may-recompute --repeated {costs}")
    assert answer["recomputed"] == [0]
    assert answer["bound_s"] <= answer["period_s"] <= answer["makespan_s"] == 16


def test_an_order_that_is_not_proven_is_no_optimum_and_a_schedule_over_the_limit_is_said_to_be(pipesched):
    """The order of V-Min is not the best; 1F1B has two in flight, and takes (m + p - 1)(F + B) = 5 x 3 s."""
    unproven = pipesched("optimize -s v_min -p 3 -m 3 --seconds 0 --uniform f=2,i=2,w=2").out
    assert "best known" in unproven
    assert "optimum" not in unproven
    limited = " ".join(pipesched(f"optimize -s 1f1b -p 2 -m 4 --seconds 0 --in-flight 1 {COSTS}").out.split())
    assert "1f1b, with 2 micro-batches in flight, holds more than the limit; it takes 15 s" in limited


def test_what_takes_more_than_the_least_says_how_much(pipesched):
    out = pipesched(f"simulate -s 1f1b -p 2 -m 4 {COSTS} --bound 0").out
    assert "no order of its ops with 2 micro-batches in flight at most takes less time: proven" in " ".join(out.split())


def test_or_tools_are_told_where_they_are_missing(pipesched, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name=name.partition(".")[0])

    monkeypatch.setattr("pipesched.simulator.optimum.order_proof.import_module", missing)
    answer = pipesched(f"optimize -s v_half -p 3 -m 3 {COSTS}")
    assert (answer.code, answer.err) == (
        4, 'pipesched: ortools is not installed; try pip install "pipesched[optimize]"\n'
    )  # fmt: skip


def test_steps_that_the_csv_does_not_say_are_told_of_where_memory_is_short(pipesched, folder):
    """Stage 3 steps before stage 0 is done, so its gradients go; read from the CSV, they stay."""
    costs = "--uniform f=4,i=3,w=2,saved_bytes=1GB,weight_bytes=2.5GB --memory-limit 6.3GB"
    as_csv, as_json = (
        " ".join(pipesched(f"optimize -s zbv -p 2 -m 2 {costs} --seconds 0 --out best.{suffix}").out.split())
        for suffix in ("csv", "json")
    )
    assert "the .csv has no steps: on reading, each stage steps after the last op of its rank" in as_csv
    assert "has no steps" not in as_json
