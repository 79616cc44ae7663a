"""Pages of searches: their tables and maps, and what a browser makes of them."""

import json
import random
from base64 import b64decode
from dataclasses import replace

import pytest

from pipesched.simulator.analysis import readable_bytes, readable_reason, readable_s
from pipesched.simulator.planner import search_plans
from pipesched.simulator.search import Outcome
from pipesched.simulator.tuner import Evaluator, Space, ranked, search_settings, tuned
from pipesched.simulator.views import plan_page, tune_page
from tests.browser import opened
from tests.simulator.planner.instances import random_request
from tests.simulator.tuner.problems import problem
from tests.simulator.views.test_timeline_page import ATTACK, Elements

TIMES = ["1.2 s", "900 ms", "1204 s", "85 us", "-", "85.5 us"]


@pytest.fixture(scope="module")
def outcomes():
    settings = Space(3, (2, 4, 8), (1, 2)).settings()
    return ranked(search_settings(problem(memory_bytes=9000), settings), Evaluator.SIMULATE)


def data_of(page):
    return json.loads(Elements(page).texts["script"][0])


def page_of(outcomes, title="a model", rows=None):
    rows = rows or [{"time": time} for time in TIMES]
    return tune_page(outcomes, outcomes[0], problem(memory_bytes=9000), title, rows, "below")


def test_a_map_has_the_best_setting_of_each_cell_with_what_it_takes(outcomes):
    time, memory = data_of(page_of(outcomes))["search"]["maps"]
    assert (time["columns"], time["rows"]) == (["1", "2"], ["8", "4", "2"])
    for row, m in enumerate((8, 4, 2)):
        for column, n in enumerate((1, 2)):
            here = [o for o in outcomes if (o.setting.num_each, o.setting.num_pipelines) == (m, n)]
            best = min(here, key=lambda outcome: (not outcome.fits, outcome.seconds))
            for cells in (time["cells"], memory["cells"]):
                lines = dict(cells[row][column]["lines"])
                assert lines["time per batch"] == readable_s(best.seconds)
                assert lines["memory"] == readable_bytes(best.held_bytes)
                assert lines.get("rejected", "") == readable_reason(best.reason)
                assert cells[row][column]["fits"] == best.fits
                answer = outcomes[0].setting
                assert cells[row][column]["is_best"] == ((m, n) == (answer.num_each, answer.num_pipelines))


def test_the_best_runs_below_with_its_memory_and_limit(outcomes):
    data = data_of(page_of(outcomes))
    assert data["search"]["heading"] == f"chosen: {outcomes[0].setting}"
    assert [lane["limit"] for lane in data["runs"][0]["memory"]] == [9000] * 3
    assert data["end"] * data["tick_s"] == pytest.approx(outcomes[0].seconds)


def test_where_nothing_fits_or_can_be_predicted_there_is_the_table_alone():
    outcome = Outcome(tuned("avgpipe", 3, 2, 1, 0), reason="got 3 stages for 2 layers")
    page = tune_page([outcome], None, problem(), "a model", [{"rejected": "got 3 stages"}], best_row=None)
    assert "<canvas" not in page
    assert data_of(page)["search"]["maps"] == []


def test_a_page_opens_with_the_figures_of_the_best_and_folds_its_table_and_notes(outcomes):
    page = page_of(outcomes)
    places = [
        page.index(text) for text in ("</h1>", 'id="figures"', 'id="maps"', "<canvas", 'id="candidates"', 'id="notes"')
    ]
    assert places == sorted(places)
    data, best = data_of(page), outcomes[0]
    assert data["notes"] == "below"
    figures = dict(data["figures"]["rows"])
    assert figures["time per batch"] == readable_s(best.seconds)
    assert figures["peak memory"] == readable_bytes(best.held_bytes)


def unlimited_request():
    request = random_request(random.Random(7))
    devices = tuple(replace(device, memory_bytes=None) for device in request.cluster.devices)
    return replace(request, cluster=replace(request.cluster, devices=devices))


def test_a_plan_page_has_a_picture_of_the_layout_and_allows_no_other():
    request = unlimited_request()
    ranking = search_plans(request, top=2)
    page = plan_page(ranking.ranked[0], request, "plans", [{"plan": str(o.setting)} for o in ranking.ranked])
    search = data_of(page)["search"]
    assert [cell for (cell,) in search["rows"]] == [str(outcome.setting) for outcome in ranking.ranked]
    picture = b64decode(search["picture"].removeprefix("data:image/svg+xml;base64,")).decode()
    assert "<svg" in picture
    (policy,) = [value for name, value in Elements(page).attributes if name == "content" and "default-src" in value]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.endswith("; img-src data:")
    assert page == plan_page(ranking.ranked[0], request, "plans", [{"plan": str(o.setting)} for o in ranking.ranked])


def test_names_of_a_stranger_end_no_element(outcomes):
    attacked = Elements(page_of(outcomes, ATTACK, [{ATTACK: ATTACK}])).texts
    assert {tag: len(texts) for tag, texts in attacked.items()} == {
        tag: len(texts) for tag, texts in Elements(page_of(outcomes)).texts.items()
    }


DRIVE = """
const column = () => [...document.querySelectorAll("#candidates tbody td")].map(cell => cell.textContent);
const header = document.querySelector("#candidates th button"), told = { given: column() };
header.click();
told.up = column();
header.click();
told.down = column();
const cell = document.querySelector("#maps td");
cell.dispatchEvent(new PointerEvent("pointermove", { clientX: 50, clientY: 50, bubbles: true }));
told.note = [tip.hidden, tip.querySelector("b").textContent];
told.colour = getComputedStyle(cell).backgroundColor;
told.boxes = numBoxes;
const [left0, top0] = [chart.getBoundingClientRect().left, chart.getBoundingClientRect().top];
const middle = { clientX: left0 + x(page.rows[0].width[0] / 2), clientY: top0 + page.rows[0].y * rowPx, bubbles: true };
chart.dispatchEvent(new PointerEvent("pointermove", middle));
told.op = tip.querySelector("b").textContent;
console.error("driven");
const result = document.createElement("pre");
result.textContent = btoa(JSON.stringify(told));
document.body.append(result);
"""


@pytest.mark.slow
def test_a_browser_sorts_the_table_by_what_is_meant_and_explains_the_cells_of_a_map(outcomes, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page_of(outcomes))
    elements, console = opened(path, tmp_path, DRIVE)
    assert console == ["driven"]
    told = json.loads(b64decode(Elements(elements).texts["pre"][0]))
    ascending = ["85 us", "85.5 us", "900 ms", "1.2 s", "1204 s", "-"]
    assert (told["given"], told["up"], told["down"]) == (TIMES, ascending, ascending[::-1])
    first = data_of(path.read_text())["search"]["maps"][0]["cells"][0][0]
    assert told["note"] == [False, first["name"]]
    red, green, blue = bytes.fromhex(first["colour"].removeprefix("#"))
    assert told["colour"] == f"rgb({red}, {green}, {blue})"
    assert told["op"] == "forward of stage 0, micro-batch 0"
    assert told["boxes"] == 2 * 3 * outcomes[0].setting.num_each + 3  # F and B on each device, and a step


@pytest.mark.slow
def test_a_browser_shows_the_layout_of_a_plan_under_the_policy_of_its_page(tmp_path):
    request = unlimited_request()
    path = tmp_path / "page.html"
    path.write_text(plan_page(search_plans(request, top=1).ranked[0], request, "plans", [{"plan": "the first"}]))
    elements, console = opened(path, tmp_path)
    assert console == []
    assert '<img id="picture" alt="where the ranks of' in elements
