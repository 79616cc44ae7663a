"""The page of Timelines: its data by independent counts, its escapes, and what a browser makes of it."""

import json
import math
from base64 import b64decode, b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from itertools import accumulate

import pytest

from pipesched.schedules import MemorySample, Timeline
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.interleaved import interleaved
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.ops import (
    Compute,
    Message,
    Overlap,
    Payload,
    Recv,
    Send,
    computes,
)
from pipesched.simulator import SimulationError
from pipesched.simulator.views import RunDetails, timeline_page
from tests.browser import opened
from tests.hand_timelines import every_kind, play, shaken

ATTACK = '</script><script>alert("1")</script><!-- &amp; \u2028\u2029 "\'\\'


class Elements(HTMLParser):
    """What the elements of a page hold, by their names."""

    def __init__(self, text):
        super().__init__()
        self.texts, self.attributes, self._open = {}, [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._open = tag
        self.attributes += attrs
        self.texts.setdefault(tag, []).append("")

    def handle_data(self, data):
        if self._open is not None:
            self.texts[self._open][-1] += data

    def handle_endtag(self, tag):
        self._open = None


def data_of(page):
    data, *scripts = Elements(page).texts["script"]
    assert len(scripts) == 3
    return json.loads(data)


def instants(columns, tick_s):
    """Return (start, end) of each span [s]."""
    moved = [part for pair in zip(columns["gap"], columns["width"], strict=True) for part in pair]
    ticks = list(accumulate(moved))
    return [(start * tick_s, end * tick_s) for start, end in zip(ticks[::2], ticks[1::2], strict=True)]


@pytest.mark.parametrize("build", [gpipe, one_f_one_b, interleaved])
def test_a_page_has_every_computation_of_every_rank_at_its_time(build):
    line = shaken(play(build(3, 6), 0.1))
    data = data_of(timeline_page([line]))
    first_s = min(span.start_s for span in line.spans if computes(span.op))
    for row in data["rows"]:
        spans = [span for span in line.spans if span.rank == row["rank"] and isinstance(span.op, Compute)]
        assert list(zip(row["stage"], row["microbatch"], strict=True)) == [
            (span.op.stage, span.op.microbatch) for span in spans
        ]
        names = {"F": "forward", "B": "backward"}
        assert [data["looks"][look]["name"] for look in row["look"]] == [names[span.op.phase.value] for span in spans]
        wanted = [(span.start_s - first_s, span.end_s - first_s) for span in spans]
        assert instants(row, data["tick_s"]) == [pytest.approx(pair, abs=2 * data["tick_s"]) for pair in wanted]


def test_idle_time_and_critical_path_fill_what_is_left():
    line = play(one_f_one_b(3, 6), 0.25)
    data = data_of(timeline_page([line]))
    (run,) = data["runs"]
    for row in data["rows"]:
        busy_s = sum(span.end_s - span.start_s for span in line.spans if span.rank == row["rank"] and computes(span.op))
        idle_s = sum(run["idle"][str(row["device"])]["width"]) * data["tick_s"]
        assert busy_s + idle_s == pytest.approx(line.makespan_s)
    assert sum(run["path"]["width"]) * data["tick_s"] == pytest.approx(line.makespan_s)
    assert set(run["path"]["kind"]) <= {"forward", "backward", "message", "wait"}


def test_a_box_says_which_box_of_another_rank_made_what_it_needed():
    data = data_of(timeline_page([play(gpipe(2, 2), 0.5)]))
    boxes = [
        (row["rank"], data["looks"][look]["name"], microbatch, after)
        for row in data["rows"]
        for look, microbatch, after in zip(row["look"], row["microbatch"], row["after"], strict=True)
    ]
    assert [None if after < 0 else boxes[after][:3] for *_, after in boxes] == [
        None, None, (1, "backward", 0), (1, "backward", 1), (0, "forward", 0), (0, "forward", 1), None, None,
    ]  # fmt: skip


def test_memory_is_what_the_samples_say_with_the_limit_of_each_device():
    samples = [(0, 0.0, 5, 0), (0, 1.5, 5, 7), (1, 0.5, 2, 0), (1, 2.0, 0, 0)]
    memory = tuple(MemorySample(d, t, (("weights", w), ("activations", a), ("never", 0))) for d, t, w, a in samples)
    data = data_of(timeline_page([replace(play(gpipe(2, 1)), memory=memory)], details=[RunDetails({1: 99})]))
    assert [kind for kind, _ in data["kinds"]] == ["weights", "activations"]
    held = [
        (lane["device"], lane["limit"], at * data["tick_s"], *now)
        for lane in data["runs"][0]["memory"]
        for at, *now in zip(accumulate(lane["time"]), *map(accumulate, lane["bytes"]), strict=True)
    ]
    limits = {0: None, 1: 99}
    assert held == [(device, limits[device], time_s, *sizes) for device, time_s, *sizes in samples]


def test_halves_and_runs_of_one_schedule_have_their_rows():
    line = play(one_f_one_b(2, 3))
    both = data_of(timeline_page([line, shaken(line)]))
    assert [(row["run"], row["rank"]) for row in both["rows"]] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    (first, second, *_) = [span.op for span in line.spans if isinstance(span.op, Compute)]
    overlap = replace(line.spans[0], op=Overlap(first, second))
    half = data_of(timeline_page([Timeline("pair", "predicted", (overlap,), (0,))]))["rows"][0]["half"]
    assert half == [1, 2]


def test_every_kind_of_op_and_posts_that_nobody_meets_have_their_page():
    posts = [Recv(Message(Payload.ACTIVATION, 0, 7), 5), Send(Message(Payload.GRADIENT, 1, 7), 9)]
    data = data_of(timeline_page([every_kind(*posts)]))
    assert [name for name, _ in data["legend"]] == [
        "forward", "backward", "backward, inputs", "backward, weights", "recompute", "late recompute",
        "reduce", "step", "average", "unshard", "reshard",
    ]  # fmt: skip
    assert [len(row["width"]) for row in data["rows"]] == [13, 13]


def test_the_table_has_settings_and_measures():
    details = RunDetails({0: 2**20}, {"jitter": "0.1"}, {0: 8, 1: 2.5})
    cells = dict(data_of(timeline_page([play(gpipe(4, 8))], details=[details]))["table"])
    assert (cells["ranks"], cells["micro-batches"], cells["jitter"]) == ("4", "8", "0.1")
    assert (cells["makespan"], cells["bubble_fraction"], cells["memory limit"]) == ("33 s", "27.27%", "1 MiB")
    assert cells["in flight, most / least"] == "8 / 2.5"


def test_what_one_run_alone_has_stands_where_it_has_it():
    lines = [play(gpipe(2, 2)), play(one_f_one_b(2, 3), 0.5)]
    memory = (MemorySample(0, 0.0, (("weights", 8),)),)
    names = [name for name, *_ in data_of(timeline_page([lines[0], replace(lines[1], memory=memory)]))["table"]]
    idle = [name for name in names if name.startswith("idle, ")]
    assert len(idle) > 2
    assert names[names.index("bubble_fraction") + 1 :][: len(idle)] == idle
    assert names.index("peak memory, most / least") < names.index("critical path, forward")


def test_names_of_a_stranger_end_no_element_and_are_no_script():
    line = replace(play(gpipe(2, 2)), name=ATTACK)
    memory = (MemorySample(0, 0.0, ((ATTACK, 1),)),)
    page = timeline_page([replace(line, memory=memory)], ATTACK, ATTACK, [RunDetails(settings={ATTACK: ATTACK})])
    harmless = timeline_page([play(gpipe(2, 2))])
    assert {tag: len(texts) for tag, texts in Elements(page).texts.items()} == {
        tag: len(texts) for tag, texts in Elements(harmless).texts.items()
    }
    shown = ATTACK.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    assert (data_of(page)["title"], data_of(page)["table"][0][1]) == (shown, shown)
    assert not set(page) & {"\u2028", "\u2029"}


def test_a_page_asks_for_nothing_and_runs_no_script_but_its_own():
    page = timeline_page([play(gpipe(2, 2))])
    elements = Elements(page)
    assert not {name for name, _ in elements.attributes} & {"src", "href", "srcset", "action"}
    assert "http://" not in page
    assert "https://" not in page
    (policy,) = [value for name, value in elements.attributes if name == "content" and "default-src" in value]
    texts = (*elements.texts["script"][1:], *elements.texts["style"])
    hashes = [f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts]
    assert policy == f"default-src 'none'; script-src {' '.join(hashes[:3])}; style-src {hashes[3]}"


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
def test_ticks_are_fine_enough_for_every_makespan(scale):
    line = play(gpipe(2, 2), seconds=lambda op: scale / 3)
    data = data_of(timeline_page([line]))
    assert 1e9 <= data["end"] < 1e10
    assert data["end"] * data["tick_s"] == pytest.approx(line.makespan_s, rel=1e-9)
    assert math.log10(data["tick_s"]) == pytest.approx(round(math.log10(data["tick_s"])))


@pytest.mark.parametrize("timelines", [[], [Timeline("empty", "predicted", (), (0,))]])
def test_nothing_to_show_is_refused(timelines):
    with pytest.raises(SimulationError, match="expected"):
        timeline_page(timelines)


DRIVE = """
const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const at = (type, seconds, rank) => {
  const bounds = chart.getBoundingClientRect(), row = page.rows.find(row => row.rank === rank);
  const clientX = bounds.left + x(seconds / page.tick_s), clientY = bounds.top + row.y * rowPx + 8;
  chart.dispatchEvent(new PointerEvent(type, { clientX, clientY, bubbles: true }));
  draw();
  const dots = chart.width / chart.clientWidth;
  pixel.drawImage(chart, (clientX - bounds.left) * dots, (clientY - bounds.top) * dots, 1, 1, 0, 0, 1, 1);
  const cells = [...tip.querySelectorAll("span")].map(span => span.textContent);
  const colour = [...pixel.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  return { colour, title: tip.hidden ? null : tip.querySelector("b").textContent, cells };
};
draw();
const told = { box: at("pointermove", 7, 0), idle: at("pointermove", 3, 0), before: at("pointermove", 4.5, 1) };
at("pointerdown", 7, 0);
at("pointerup", 7, 0);
told.marked = [at("pointermove", 7, 0).colour, at("pointermove", 4.5, 1).colour, at("pointermove", 9.2, 0).colour];
document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
told.unmarked = at("pointermove", 9.2, 0).colour;
chart.dispatchEvent(new WheelEvent("wheel", { deltaY: -300, clientX: 600, clientY: 200, cancelable: true }));
draw();
told.zoomed = (view.to - view.from) / page.end;
document.dispatchEvent(new KeyboardEvent("keydown", { key: "0" }));
told.fitted = view.to - view.from === page.end;
console.error("driven");
const result = document.createElement("pre");
result.id = "told";
result.textContent = btoa(JSON.stringify(told));
document.body.append(result);
"""


def blend(colour, behind, alpha):
    return [pytest.approx(alpha * a + (1 - alpha) * b, abs=2) for a, b in zip(colour, behind, strict=True)]


@pytest.mark.slow
def test_a_browser_shows_the_op_under_the_pointer_and_marks_its_micro_batch(tmp_path):
    """F takes 1 s, B 2 s and a message 0.5 s: rank 0 waits from 2 s to 6 s for B0 of rank 1, 3.5 s to 5.5 s."""
    path = tmp_path / "page.html"
    path.write_text(timeline_page([play(gpipe(2, 2), 0.5)], ATTACK, details=[RunDetails({}, {ATTACK: ATTACK})]))
    elements, console = opened(path, tmp_path)
    assert console == []
    assert (elements.count("<h1"), elements.count("<script")) == (1, 4)
    assert Elements(elements).texts["h1"][0].startswith('</script><script>alert("1")')

    elements, console = opened(path, tmp_path, DRIVE)
    assert console == ["driven"]
    told = json.loads(b64decode(Elements(elements).texts["pre"][0]))
    orange, idle = [0xEE, 0x9A, 0x4D], [0xED, 0xF0, 0xF4]
    box, gap, waiting = told["box"], told["idle"], told["before"]
    assert (box["title"], box["colour"]) == ("backward of stage 0, micro-batch 0", orange)
    assert box["cells"] == [
        "rank", "0, device 0", "stage", "0", "micro-batch", "0", "start", "6 s", "end", "8 s", "takes", "2 s",
        "needs", "backward of stage 1, micro-batch 0, of rank 1, over at 5.5 s", "waited", "4 s",
        "", "3.5 s downstream: a gradient was still being computed", "", "500 ms transfer: the message was travelling",
        "", "on the critical path",
    ]  # fmt: skip
    assert (gap["title"], gap["colour"]) == ("idle", idle)
    assert gap["cells"][:4] == ["rank", "0", "cause", "downstream: a gradient was still being computed"]
    assert (waiting["title"], "waited" in waiting["cells"]) == ("backward of stage 1, micro-batch 0", False)
    assert told["marked"] == [orange, orange, blend(orange, idle, 0.2)]
    assert told["unmarked"] == orange
    assert told["zoomed"] < 0.9
    assert told["fitted"]


def test_a_page_opens_with_figures_and_the_chart_and_folds_tables_and_notes():
    memory = (MemorySample(0, 0.0, (("weights", 8),)), MemorySample(1, 0.0, (("weights", 6),)))
    line = replace(play(gpipe(2, 2)), memory=memory)
    page = timeline_page([line], notes="a note", details=[RunDetails({0: 16, 1: 8})])
    places = [page.index(text) for text in ("</h1>", 'id="figures"', "<canvas", "<details>", '<details id="notes">')]
    assert places == sorted(places)
    data = data_of(page)
    assert data["notes"] == "a note"
    assert data["figures"]["rows"] == [
        ["makespan", "9 s"],
        ["bubble_fraction", "33.33%"],
        ["micro-batches/s", "0.2222"],
        ["peak memory", "6 B of 8 B"],
    ]


def test_figures_of_several_runs_have_a_value_for_each_of_the_fastest():
    lines = [replace(play(gpipe(2, m)), name=f"run {m}") for m in (8, 7, 1, 2, 3, 4, 5, 6)]
    figures = data_of(timeline_page(lines))["figures"]
    assert (len(figures["names"]), {len(row) for row in figures["rows"]}) == (6, {7})
    assert figures["rows"][0][:3] == ["makespan, 6 fastest of 8", "6 s", "9 s"]
    assert figures["names"] == [f"run {m} predicted" for m in range(1, 7)]
