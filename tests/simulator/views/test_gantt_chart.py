import math
import re
from dataclasses import replace
from itertools import groupby, pairwise

import pytest

from pipesched.schedules import HandOver, MemorySample, Span, Timeline
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.interleaved import interleaved
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.ops import Average, Compute, Overlap, Phase, Reduce, Reshard, Step, Unshard, backward, forward
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import metrics, readable_s
from pipesched.simulator.views import (
    ChartOptions,
    RunDetails,
    draw_gantt,
    gantt_figure,
    gantt_layout,
    text_gantt,
)
from pipesched.simulator.views.figure import IDLE
from pipesched.simulator.views.op_looks import lighter, look
from tests.hand_timelines import every_kind, play, shaken

STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".html": b"<!DOCTYPE html>"}


@pytest.mark.parametrize("suffix", STARTS)
def test_a_picture_or_page_is_written_by_its_suffix(tmp_path, suffix):
    path = tmp_path / f"chart{suffix}"
    draw_gantt([every_kind()], path, title="1F1B")
    assert path.read_bytes().startswith(STARTS[suffix])
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("timelines", [[], [Timeline("empty", "predicted", (), (0,))]])
def test_nothing_to_draw_is_refused(tmp_path, timelines):
    with pytest.raises(SimulationError, match="expected"):
        draw_gantt(timelines, tmp_path / "chart.png")


def test_two_runs_of_one_schedule_are_paired_rank_by_rank():
    line = play(one_f_one_b(3, 4), 0.1)
    chart = gantt_layout([line, shaken(line)])
    assert [(row.rank, row.timeline) for row in sorted(chart.rows, key=lambda row: row.y)] == [
        (rank, index) for rank in range(3) for index in range(2)
    ]


def test_runs_of_one_name_are_told_apart():
    line = play(gpipe(2, 2))
    assert gantt_layout([line, shaken(line)]).names == ("predicted", "measured")
    assert gantt_layout([line, play(one_f_one_b(2, 2))]).names == ("gpipe predicted", "1f1b predicted")
    assert gantt_layout([line, line]).names == ("predicted 1", "predicted 2")


def test_two_schedules_stand_one_under_another():
    timelines = [play(gpipe(3, 4)), play(one_f_one_b(3, 4))]
    chart = gantt_layout(timelines)
    assert [(row.timeline, row.rank) for row in sorted(chart.rows, key=lambda row: row.y)] == [
        (index, rank) for index in range(2) for rank in range(3)
    ]
    assert len(chart.headings) == 2


@pytest.mark.parametrize("count", [1, 3])
def test_rows_never_touch_and_stay_in_the_picture(count):
    line = play(one_f_one_b(3, 4))
    for timelines in ([line] * count, [play(gpipe(2 + i, 4)) for i in range(count)]):
        chart = gantt_layout(timelines)
        rows = sorted(chart.rows, key=lambda row: row.y)
        assert all(a.y + a.height / 2 < b.y - b.height / 2 for a, b in pairwise(rows))
        assert rows[0].y - rows[0].height / 2 >= 0
        assert rows[-1].y + rows[-1].height / 2 <= chart.depth


def test_the_halves_of_an_overlap_fill_the_height_of_the_row_one_above_the_other():
    (row,) = gantt_layout([paired()]).rows
    upper, lower = (box for box in gantt_layout([paired()]).boxes if box.height < row.height)
    assert (upper.kind, upper.text, lower.kind, lower.text) == ("F", "12", "B", "3")
    assert (upper.start_s, upper.end_s) == (lower.start_s, lower.end_s) == (3.0, 6.0)
    assert upper.y + upper.height / 2 == pytest.approx(lower.y - lower.height / 2)
    assert upper.height + lower.height == pytest.approx(row.height)


def paired():
    ops = [forward(0, 3), Overlap(forward(1, 12), backward(0, 3)), Compute(Phase.RECOMPUTE, 1, 12), backward(1, 12)]
    spans = [Span(0, op, 3.0 * i, 3.0 * i, 3.0 * (i + 1)) for i, op in enumerate(ops)]
    return Timeline("paired", "predicted", tuple(spans), (0,))


def test_both_numbers_of_an_overlap_are_written_however_many_rows_there_are():
    from pipesched.simulator.views import draw

    for timelines in ([paired()], [paired(), *[play(gpipe(6, 4))] * 3]):
        numbers = {
            (text.get_text(), text.get_fontsize() < 8.5)
            for text in draw(gantt_layout(timelines), "").axes[0].texts
            if text.get_text() in ("12", "3")
        }
        assert {("12", False), ("3", False)} <= numbers
        assert (("12", True) in numbers) == (len(timelines) > 1)


def uneven(num_boxes=24):
    """Rank 0 has boxes for one digit, but not for two, and boxes for none, in turn; rank 1 a wide one each."""
    spans = []
    for i in range(num_boxes):
        at = 10.0 * i
        spans += [
            Span(0, op, at + j, at + j, at + j + w) for j, w, op in ((0, 2.5, backward(0, i)), (4, 0.4, forward(0, i)))
        ]
        spans.append(Span(1, forward(1, i), at, at, at + 10))
    return Timeline("uneven", "predicted", tuple(spans), (0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("timeline", [uneven(), uneven(9), paired()])
def test_a_number_stands_in_every_box_that_has_room_for_the_widest_and_reaches_into_no_other(timeline):
    from pipesched.simulator.views import draw

    chart = gantt_layout([timeline])
    figure = draw(chart, "")
    (axes,) = figure.axes
    unit_s = axes.get_xlim()[1] / timeline.from_zero().makespan_s
    numbers = [text for text in axes.texts if text.get_text().isdigit()]
    digits = max(len(box.text) for box in chart.boxes)
    for box in chart.boxes:
        own = [
            text for text in numbers
            if text.get_position() == pytest.approx(((box.start_s + box.end_s) / 2 * unit_s, box.y))
        ]  # fmt: skip
        left, right = (axes.transData.transform((at_s * unit_s, box.y))[0] for at_s in (box.start_s, box.end_s))
        points = (right - left) * 72 / figure.dpi
        for text in own:
            extent = text.get_window_extent()
            assert left < extent.x0 < extent.x1 < right
        if box.text and points < 0.63 * 5 * digits:
            assert own == []
        if box.text and points > 0.64 * 5 * digits + 2:  # DejaVu's digits are 0.636 of the size wide
            assert [text.get_text() for text in own] == [box.text]


def test_the_share_beside_a_row_is_what_its_device_was_busy_without_its_reduces():
    from pipesched.simulator.views import draw

    ops = [forward(0, 0), Reduce(0), Step(0)]
    spans = [Span(0, op, 2.0 * i, 2.0 * i, 2.0 * i + 1) for i, op in enumerate(ops)]
    line = Timeline("reduced", "predicted", tuple(spans), (0,))
    texts = [text.get_text() for text in draw(gantt_layout([line]), "").axes[0].texts]
    assert metrics(line).devices[0].busy_s == 2.0
    assert "40%" in texts


@pytest.mark.parametrize("num_chunks", [2, 4, 8])
def test_chunks_are_told_apart_and_none_looks_idle(num_chunks):
    idle = tuple(channel / 255 for channel in bytes.fromhex(IDLE.removeprefix("#")))
    faces = {
        kind: list(dict.fromkeys(lighter(look(box.op)[1], box.lightness) for box in boxes))
        for kind, boxes in groupby(
            sorted(gantt_layout([play(interleaved(2, 4, num_chunks))]).boxes, key=lambda box: (box.kind, box.op.stage)),
            key=lambda box: box.kind,
        )
    }
    for colours in faces.values():
        assert len(colours) == num_chunks
        assert min(math.dist(a, b) for a, b in pairwise(colours)) > 0.05
        assert min(math.dist(colour, idle) for colour in colours) > 0.2


def test_a_terminal_shows_a_letter_for_each_second():
    line = play(gpipe(2, 8))  # 27 s; a rank's name takes 8 characters
    rows = text_gantt(line, width=8 + 27).splitlines()
    assert rows[0] == "gpipe predicted: 27 s, bubble_fraction 11.1%"
    assert rows[1] == "rank 0  " + "F" * 8 + "." * 3 + "B" * 16
    assert rows[2] == "rank 1  " + "." + "F" * 8 + "B" * 16 + ".."
    assert rows[3] == "        0" + "27 s".rjust(26)
    assert rows[4] == "        F forward  B backward  . idle"


def reduced_beside_a_forward():
    """A reduction from 3 to 6 s, beside the first second of which rank 0 computes."""
    first = [(forward(0, 0), 0, 1), (backward(0, 0), 1, 3), (Reduce(0), 3, 6), (forward(0, 2), 3, 4), (Step(0), 6, 7)]
    second = [(forward(0, 1), 0, 1), (Reduce(0), 3, 6), (Step(0), 6, 7)]
    spans = [Span(rank, op, start, start, end) for rank, row in enumerate((first, second)) for op, start, end in row]
    return Timeline("by hand", "predicted", tuple(spans), (0, 1))


def test_a_reduction_is_drawn_where_nothing_else_of_its_rank_runs():
    rows = text_gantt(reduced_beside_a_forward(), width=8 + 28).splitlines()
    assert rows[1] == "rank 0  " + "FFFF" + "BBBBBBBB" + "FFFF" + "++++++++" + "SSSS"
    assert rows[2] == "rank 1  " + "FFFF" + "........" + "++++++++++++" + "SSSS"
    boxes = [box for box in gantt_layout([reduced_beside_a_forward()]).boxes if box.kind == "Reduce"]
    assert [(box.start_s, box.end_s) for box in boxes] == [(4, 6), (3, 6)]


def test_a_reduction_that_computations_interrupt_is_drawn_in_pieces():
    ops = [(Reduce(0), 0, 10), (forward(0, 0), 0, 1), (forward(0, 1), 3, 4), (forward(0, 2), 4, 6), (Step(0), 10, 11)]
    spans = tuple(Span(0, op, start, start, end) for op, start, end in ops)
    boxes = gantt_layout([Timeline("by hand", "predicted", spans, (0,))]).boxes
    assert [(box.start_s, box.end_s) for box in boxes if box.kind == "Reduce"] == [(1, 3), (6, 10)]


def test_a_terminal_knows_every_kind_of_op():
    rows = text_gantt(every_kind(), width=120).splitlines()
    assert set(rows[1][8:]) == set("FBIWRLO+SAur.")
    assert "O overlap" in "".join(rows[-2:])


def test_a_terminal_line_is_as_wide_as_asked_for():
    assert {len(row) for row in text_gantt(play(one_f_one_b(11, 20), 0.3), width=77).splitlines()[1:12]} == {77}


@pytest.mark.parametrize(
    ("time_s", "text"),
    [(0.0, "0 s"), (26.0, "26 s"), (0.0214, "21.4 ms"), (3.5e-6, "3.5 us"), (2e-9, "2 ns"), (12345.6, "12346 s")],
)
def test_times_are_in_the_unit_that_people_read(time_s, text):
    assert readable_s(time_s) == text


def test_handing_over_is_drawn_and_explained_where_there_is_some():
    plain = play(one_f_one_b(2, 2))
    handed = replace(plain, hand_overs=(HandOver(0, forward(0, 0), 0.25, 0.5), HandOver(1, forward(1, 0), 0.5, 0.75)))

    def names(timeline):
        return [text.get_text() for text in gantt_figure([timeline]).legends[-1].get_texts()]

    assert names(handed) == [*names(plain)[:2], "hand-over", *names(plain)[2:]]
    bars = [collection for collection in gantt_figure([handed]).axes[0].collections if collection.get_zorder() == 1.5]
    assert [[path.get_extents().x0 for path in bar.get_paths()] for bar in bars] == [[0.25], [0.5]]


def narrow_ops():
    """Ops of a tenth of a slot of 1 s, alone, between wide ones, and two in the only slot of another."""
    wide = [(forward(0, 0), 0.0, 4.0), (Step(0), 4.0, 4.1), (backward(0, 0), 4.1, 8.0), (Unshard(0), 12.3, 12.4)]
    crowded = [
        (Reshard(0), 15.0, 15.1),
        (forward(0, 1), 15.1, 15.9),
        (Average(0), 15.9, 16.0),
        (backward(0, 1), 19, 20),
    ]
    return Timeline(
        "narrow", "predicted", tuple(Span(0, op, start, start, end) for op, start, end in wide + crowded), (0,)
    )


def test_an_op_narrower_than_a_character_has_one_unless_it_is_the_last_of_another():
    row = text_gantt(narrow_ops(), width=8 + 20).splitlines()[1]
    assert row == "rank 0  " + "FFFFSBBB" + "...." + "u" + ".." + "F" + "..." + "B"


def test_a_part_of_the_time_is_shown_with_its_ends():
    rows = text_gantt(play(gpipe(2, 8)), width=8 + 20, options=ChartOptions(5.0, 15.0)).splitlines()
    assert rows[1] == "rank 0  " + "F" * 6 + "." * 6 + "B" * 8
    assert rows[3] == "        5 s" + "15 s".rjust(17)
    axes = gantt_figure([play(gpipe(2, 8))], options=ChartOptions(5.0, 15.0)).axes[0]
    assert axes.get_xlim() == (5.0, 15.0)
    numbers = [text for text in axes.texts if text.get_text().isdigit()]
    assert all(5.0 < text.get_position()[0] < 15.0 for text in numbers)


def test_colours_change_no_letter():
    plain, painted = (text_gantt(every_kind(), has_colour=has_colour) for has_colour in (False, True))
    assert re.sub("\x1b\\[[0-9;]*m", "", painted) == plain != painted


def test_a_panel_shows_what_each_device_holds_to_one_scale_with_its_limit():
    samples = [(0, 0.0, 30, 0), (0, 2.0, 30, 30), (1, 0.0, 20, 10)]
    memory = tuple(MemorySample(d, t, (("weights", w), ("activations", a))) for d, t, w, a in samples)
    line = replace(play(gpipe(2, 2)), memory=memory)
    figure = gantt_figure([line], options=ChartOptions(has_memory=True), details=[RunDetails({1: 80})])
    below = figure.axes[1]
    (limit,) = below.lines
    tops = [box.get_datalim(below.transData).bounds for box in below.collections if box.get_zorder() == 2]
    heights = [height for _, _, _, height in tops]
    assert heights[0] / limit_height(limit, 1) == pytest.approx(30 / 80)
    assert heights == pytest.approx([heights[0] * share for share in (1, 1, 2 / 3, 1 / 3)])
    texts = {text.get_text() for text in below.texts}
    assert texts == {"device 0", "device 1", "60 B", "30 B\nof 80 B"}


def limit_height(line, row):
    """Return how far a line is above the bottom of the lane in its row, which 0.86 of the row is high."""
    return row + (1 + 0.86) / 2 - line.get_ydata()[0]


def test_idle_time_is_coloured_by_its_causes():
    figure = gantt_figure([play(gpipe(2, 2), 0.5)], options=ChartOptions(has_idle=True))
    words = [[text.get_text() for text in legend.get_texts()] for legend in figure.legends]
    assert ["idle time:", "warmup", "downstream", "transfer", "cooldown"] in words
    strips = [bars for bars in figure.axes[0].collections if bars.get_zorder() == 1.6]
    widths = [path.get_extents().width for bars in strips for path in bars.get_paths()]
    idle_s = sum(device.idle_s for device in metrics(play(gpipe(2, 2), 0.5)).devices)
    assert sum(widths) == pytest.approx(idle_s)


def test_titles_say_the_numbers_and_where_the_costs_come_from():
    line = play(interleaved(2, 4, 2))
    details = RunDetails(settings={"costs": "a table"})

    def title(*timelines, **given):
        return gantt_figure(timelines, **given).texts[0].get_text()

    assert title(line) == "interleaved: p = 2, m = 4, v = 2"
    assert title(line, details=[details]).endswith("; costs: a table")
    assert title(line, play(gpipe(2, 4))) == "interleaved, gpipe: p = 2, m = 4"
    assert title(line, title="mine", details=[details]) == "mine"
