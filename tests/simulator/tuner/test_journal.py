from dataclasses import replace
from itertools import chain, islice

import pytest

from pipesched.simulator import SimulationError
from pipesched.simulator.tuner import Space, evaluate_setting, search_settings, setting_journal
from tests.simulator.tuner.problems import problem

SETTINGS = Space(3, (2, 4, 8), (1, 2), (0, 1)).settings()

OUTCOME = '{"setting": {"schedule": "avgpipe", "num_ranks": 3, "num_microbatches": 8}, "seconds": 2.5}\n'


def all_of(take):
    return chain.from_iterable(iter(take, ()))


def stopped_after(count, asked, path):
    """Search until `count` settings are found, and stop there."""

    def run(judge, take):
        for setting in islice(all_of(take), count):
            yield judge(setting)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search_settings(asked, SETTINGS, journal=setting_journal(path, asked), runner=run)


def test_a_stopped_search_goes_on_with_what_is_left(tmp_path):
    asked, path = problem(memory_bytes=9000), tmp_path / "j"
    stopped_after(4, asked, path)
    known = {*setting_journal(path, asked).known}
    seen, told = [], []

    def run(judge, take):
        seen.extend(all_of(take))
        return map(judge, seen)

    outcomes = search_settings(asked, SETTINGS, journal=setting_journal(path, asked), runner=run, tick=told.append)
    assert (len(known), len(seen), {*seen}) == (4, len(SETTINGS) - 4, {*SETTINGS} - known)
    assert outcomes == tuple(evaluate_setting(asked, setting) for setting in SETTINGS)
    assert told[-1] == 1.0
    again = search_settings(
        asked, SETTINGS, journal=setting_journal(path, asked), runner=lambda judge, take: map(judge, all_of(take))
    )
    assert again == outcomes
    assert len(path.read_text().splitlines()) == 1 + len(SETTINGS)


def test_a_line_cut_short_is_found_anew(tmp_path):
    asked, path = problem(), tmp_path / "j"
    stopped_after(3, asked, path)
    known = [*setting_journal(path, asked).known]
    path.write_text(path.read_text()[:-10])
    journal = setting_journal(path, asked)
    assert list(journal.known) == known[:2]
    assert search_settings(asked, SETTINGS, journal=journal) == search_settings(asked, SETTINGS)
    assert set(setting_journal(path, asked).known) == set(SETTINGS)


@pytest.mark.parametrize(
    "other",
    [problem(batch_size=16), problem(num_devices=2), problem(memory_bytes=5), replace(problem(), partition="uniform")],
)
def test_a_search_of_something_else_is_refused(tmp_path, other):
    setting_journal(tmp_path / "j", problem())
    with pytest.raises(SimulationError, match="got the journal of another search"):
        setting_journal(tmp_path / "j", other)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hello\n", "line 1: got no JSON"),
        ("3\n", "got the journal of another search"),
        ("[" * 100_000 + "\n", "line 1: got no JSON"),
        ("{head}\n{}\n", "line 2: got no outcome of a setting: setting: got nothing, expected this field"),
        ("{head}\n" + "[" * 100_000 + "\n", "line 2: got no outcome"),
        ("{head}\n" + OUTCOME.replace("2.5", "NaN"), "line 2: got no outcome of a setting: seconds: got nan, expected"),
        ("{head}\n" + OUTCOME.replace("2.5", '"5"'), "seconds: got '5', expected a number"),
        (
            "{head}\n" + OUTCOME.replace("2.5", "-2.5"),
            "line 2: got no outcome of a setting: seconds: got -2.5, expected 0",
        ),
        ("{head}\n" + OUTCOME.replace("2.5", f'2.5, "held_bytes": {"9" * 400}'), "held_bytes: got 99"),
        ("{head}\n" + OUTCOME.replace("8", "8.5"), "setting.num_microbatches: got 8.5, expected an integer"),
        ("{head}\n" + OUTCOME.replace("8", "true"), "setting.num_microbatches: got True, expected an integer"),
        ("{head}\n" + OUTCOME.replace("8", '8, "more": 1'), "setting.more: got an unknown field"),
    ],
)
def test_what_is_no_search_is_refused_in_one_line(tmp_path, text, fault):
    path = tmp_path / "j"
    setting_journal(path, problem())
    path.write_text(text.replace("{head}", path.read_text().strip()))
    with pytest.raises(SimulationError) as error:
        setting_journal(path, problem())
    assert fault in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["what I wrote", "a line\nand one that is cut", "a line\n"])
def test_a_file_that_is_no_search_stays_as_it_is(tmp_path, text):
    (tmp_path / "notes").write_text(text)
    with pytest.raises(SimulationError):
        setting_journal(tmp_path / "notes", problem())
    assert (tmp_path / "notes").read_text() == text


@pytest.mark.parametrize("length", [0, 1, 40, -1])
def test_a_search_stopped_in_its_first_line_begins_anew(tmp_path, length):
    setting_journal(tmp_path / "j", problem())
    whole = (tmp_path / "j").read_text()
    (tmp_path / "j").write_text(whole[:length])
    journal = setting_journal(tmp_path / "j", problem())
    assert journal.known == {}
    outcome = evaluate_setting(problem(), SETTINGS[0])
    journal.add(outcome)
    assert (tmp_path / "j").read_text().startswith(whole)
    assert setting_journal(tmp_path / "j", problem()).known == {SETTINGS[0]: outcome}


def test_a_file_is_changed_by_the_first_new_outcome_and_not_before(tmp_path):
    asked, path = problem(), tmp_path / "j"
    stopped_after(2, asked, path)
    damaged = path.read_text()[:-10]
    path.write_text(damaged)
    with pytest.raises(KeyboardInterrupt):
        search_settings(asked, SETTINGS, journal=setting_journal(path, asked), runner=_refusing)
    assert path.read_text() == damaged


def _refusing(judge, take):
    raise KeyboardInterrupt
