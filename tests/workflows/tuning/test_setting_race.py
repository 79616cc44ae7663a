"""A race of settings: who runs when, within a budget, and what is said of it."""

from dataclasses import replace

import numpy as np
import pytest

import pipesched
from pipesched.simulator.search import Outcome
from pipesched.simulator.tuner import tuned
from pipesched.workflows.tuning import SettingRace, TuneResult
from pipesched.workflows.tuning.setting_race import contenders_of, race_settings, require_one_round
from tests.simulator.tuner.problems import problem

ADVANCES = (0, 1, 2)


def predicted(*seconds):
    """Settings of rising M, predicted to take so long."""
    return tuple(Outcome(tuned("avgpipe", 3, m, 1, 0), s, 1) for m, s in zip((2, 4, 8, 16), seconds, strict=False))


class Track:
    """Runs settings that take known seconds, and keeps its own time."""

    def __init__(self, seconds, noise=0.0, refused=()):
        self.seconds, self.noise, self.refused = seconds, noise, refused
        self.ran, self.now_s, self.rng = [], 0.0, np.random.default_rng(0)

    def look(self):
        return 0.001

    def num_iterations(self, setting):
        return 2

    def __call__(self, setting, tick=lambda fraction: None):
        taken = self.seconds[setting.num_microbatches] * float(np.exp(self.rng.normal(0.0, self.noise)))
        self.now_s += 2 * taken
        self.ran.append(setting.num_microbatches)
        reason = "over memory: device 0" if setting.num_microbatches in self.refused else None
        return Outcome(setting, taken, 1, reason)


def race_on(track, contenders, budget_s):
    return race_settings(contenders, track, budget_s, clock=lambda: track.now_s)


def test_the_fastest_on_the_track_wins_whatever_was_predicted():
    track = Track({2: 1.3, 4: 1.0, 8: 1.2}, noise=0.01)
    race = race_on(track, predicted(1.0, 1.1, 1.2), 1000.0)
    assert race.is_clear
    assert race.leader.outcome.setting.num_microbatches == 4
    assert race.runner_up.outcome.setting.num_microbatches == 8
    lag = race.runner_up.lag
    assert 0 < lag.low < 0.2 < lag.high
    assert "1f1b M=4 N=1 won: the next, 1f1b M=8 N=1, takes +" in race.sentence
    (axes,) = race.plot().axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1f1b M=2 N=1", "1f1b M=4 N=1", "1f1b M=8 N=1"]
    assert {contender.outcome.setting.num_microbatches: race.state(contender) for contender in race.contenders} == {
        2: "slower", 4: "won", 8: "slower",
    }  # fmt: skip


def test_every_round_runs_all_in_turn_to_and_fro():
    track = Track({2: 1.0, 4: 1.0, 8: 1.0}, noise=0.1)
    race_on(track, predicted(1.0, 1.0, 1.0), 40.0)
    assert track.ran[0] == 2, "the run beforehand"
    assert track.ran[1:10] == [2, 4, 8, 8, 4, 2, 2, 4, 8]


def test_no_round_is_begun_that_does_not_fit_into_the_budget():
    track = Track({2: 1.0, 4: 1.0})
    race = race_on(track, predicted(1.0, 1.0), 25.0)
    assert (race.num_rounds, race.spent_s) == (6, 24.0)  # 4 s a round; the run beforehand does not count
    assert not race.is_clear
    assert race.sentence.startswith("no clear winner: 1f1b M=2 N=1 leads, but cannot be told apart from 1f1b M=4 N=1")
    assert race.sentence.endswith("the budget is spent")
    assert [race.state(contender) for contender in race.contenders] == ["leads", "open"]


def test_the_first_round_is_run_to_its_end_and_says_that_it_says_nothing():
    race = race_on(Track({2: 100.0, 4: 300.0}), predicted(1.0, 1.0), 5.0)
    assert (race.num_rounds, race.num_runs, race.is_clear) == (1, 2, False)
    assert "takes +200.0% (one run: no interval) longer" in race.sentence
    assert race.to_dict()["contenders"][1]["lag"] == {"mean": pytest.approx(2.0), "low": None, "high": None}


def test_a_budget_that_one_round_is_predicted_to_exceed_is_refused_before_anything_runs():
    track = Track({2: 1.0, 4: 1.0})
    with pytest.raises(pipesched.ArgumentError, match=r"^budget_s: got 5 s, but one round of 2 settings .* 6 s"):
        race_on(track, predicted(1.0, 2.0), 5.0)
    assert track.ran == []
    require_one_round(predicted(1.0, 2.0), track, 6.0)


def test_a_setting_that_cannot_be_run_is_out_with_its_reason():
    race = race_on(Track({2: 1.0, 4: 2.0, 8: 4.0}, refused={2}), predicted(1.0, 2.0, 3.0), 100.0)
    assert [race.state(contender) for contender in race.contenders] == ["out", "won", "slower"]
    assert "1f1b M=2 N=1 is out: over memory: device 0" in race.table().caption
    with pytest.raises(pipesched.ArgumentError, match=r"^none of 2 settings can be run"):
        race_on(Track({2: 1.0, 4: 1.0}, refused={2, 4}), predicted(1.0, 1.0), 100.0)


def test_one_contender_has_won_without_a_run():
    track = Track({})
    race = race_on(track, predicted(9.0), 1.0)
    assert (race.is_clear, race.num_runs, track.ran) == (True, 0, [])
    assert "no other setting to race" in race.sentence


def test_settings_that_differ_in_their_advance_alone_are_one_contender_beside_plain_1f1b():
    outcomes = tuple(
        Outcome(tuned("avgpipe", 3, m, 1, advance), 1.0 * m - 0.01 * advance, 1)
        for m in (2, 4, 8)
        for advance in ADVANCES[::-1]
    )
    result = TuneResult(problem(), "simulate", outcomes, outcomes[2], averages=False)
    assert [str(contender.setting) for contender in contenders_of(result.candidates, result.plain, 2)] == [
        "1f1b_afp M=2 N=1 advance=2",
        "1f1b_afp M=4 N=1 advance=2",
        "1f1b M=2 N=1",
    ]
    race = race_on(Track({2: 2.0, 4: 1.0, 8: 3.0}), contenders_of(result.candidates, result.plain, 2), 1000.0)
    assert result.chosen == outcomes[0]
    assert replace(result, race=race).chosen == outcomes[3]
    assert replace(result, race=race).averaged is None


def test_the_table_fits_80_columns_and_a_frame_has_the_ends_of_the_intervals():
    race = race_on(Track({2: 1.0, 4: 1.1}, noise=0.1), predicted(1.0, 1.0), 60.0)
    widths = [max(len(name), *(len(row[name]) for row in race.table().rows)) for name in race.table().rows[0]]
    assert sum(widths) + 3 * len(widths) + 1 <= 80 - len("_afp advance=2 ")
    assert {"measured_s_low", "lag_high", "state", "rounds"} <= set(race.to_frame().columns)
    assert isinstance(race, SettingRace)
    assert "Race of settings" in race._repr_html_()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"budget_s": 0}, "budget_s: got 0, expected a number above 0"),
        (
            {"budget_s": 9, "evaluator": "measure"},
            "budget_s: got a budget with `evaluator=measure`, which runs every setting",
        ),
        (
            {"resume": "kept", "evaluator": "avgpipe"},
            "resume: got a journal with `evaluator=avgpipe`, whose equations take no time",
        ),
        (
            {"num_workers": 2, "evaluator": "measure"},
            "num_workers: got this setting with `evaluator=measure`, which runs one setting after the other",
        ),
    ],
)
def test_a_race_that_makes_no_sense_is_refused(fields, words):
    with pytest.raises(pipesched.ArgumentError) as refusal:
        pipesched.tune(problem().profile, batch_size=8, num_devices=2, **fields)
    assert str(refusal.value).startswith(words)


@pytest.mark.distributed
def test_the_best_race_in_processes_and_the_answer_is_who_leads():
    profile = pipesched.profile("mlp:layers=4,width=8", [1, 4], repeats=1, warmup=1, passes=2, splits=False)
    assert profile.profile.provenance.repeats == 2
    tuned = pipesched.tune(profile.profile, batch_size=4, num_devices=2, microbatches=[1, 4], pipelines=[1], budget_s=3)
    assert tuned.race.num_rounds >= 1
    assert tuned.chosen == tuned.race.leader.outcome
    assert all(contender.measured.median > 0 for contender in tuned.race.contenders)
    assert tuned.race.budget_s == 3
