"""``versions``: which weights every op reads."""

from pipesched.schedules.builders import CATALOGUE
from tests.cli.json_answers import data


def test_data_has_every_op_with_its_version_and_look_ahead(pipesched):
    report = data(pipesched, "versions -s pipeoptim -p 4 -m 6")
    reads = {(op["stage"], op["microbatch"], op["phase"]): (op["version"], op["lookahead"]) for op in report["ops"]}
    assert len(reads) == len(report["ops"]) == 4 * 6 * 2
    for stage in range(4):
        for i in range(6):
            assert reads[stage, i, "F"] == (max(0, i - (3 - stage)), 3 - stage)
            assert reads[stage, i, "B"] == (i, 0)
    fifth = [op for op in report["ops"] if (op["stage"], op["microbatch"]) == (0, 4)]
    assert [(op["staleness"], op["update"], op["agreement"], op["held"], op["predicted_copy"]) for op in fifth] == [
        (3, 4, "predicted", [1], True),
        (0, 4, "predicted", [4], False),
    ]


def test_every_schedule_has_a_table(pipesched):
    for name in CATALOGUE:
        answer = pipesched(f"versions -s {name} -p 4 -m 8")
        assert (answer.code, answer.err) == (0, "")
        assert f"{name}: weight versions that F and B read" in answer.out
        assert "micro-batches in flight on each rank" in answer.out


def test_the_table_shows_the_first_microbatches_and_what_they_read(pipesched):
    out = pipesched("versions -s pipeoptim -p 3 -m 40 --first 5").out
    first = next(line for line in out.splitlines() if line.strip("│ ").startswith("0 "))
    assert [cell.strip() for cell in first.strip("│").split("│")] == ["0", "0+2 0", "0+2 1", "0+2 2", "1+2 3", "2+2 4"]
    assert "40 micro-batches" in out
    assert "1 + 1" in out


def test_a_file_is_read_whole_and_refused_if_it_cannot_run(pipesched):
    assert "mine: weight versions that F and B read" in pipesched("versions -f mine.csv").out
    answer = pipesched("versions -f dead.csv")
    assert (answer.code, answer.out) == (1, "")
    assert "rank 0 op 1" in answer.err


def test_a_picture_is_drawn_beside_the_table(pipesched, folder):
    assert pipesched("versions -s spectrain -p 3 -m 9 --plot staleness.svg").code == 0
    assert (folder / "staleness.svg").read_text().startswith("<?xml")


def test_a_run_too_long_for_memory_is_read_through(pipesched, monkeypatch):
    monkeypatch.setattr("pipesched.schedules.common.limits.MAX_CELLS", 50)
    assert pipesched("show -s pipedream -p 2 -m 2000").code == 2
    assert "2000 micro-batches" in pipesched("versions -s pipedream -p 2 -m 2000").out
