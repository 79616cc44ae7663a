from pipesched.simulator.search import Outcome, least
from pipesched.simulator.tuner import Evaluator, best_plain, pareto, ranked, tuned, tuned_row


def outcome(m, n, seconds, held_bytes, reason=None, advance=1):
    return Outcome(tuned("avgpipe", 3, m, n, advance), seconds, held_bytes, reason)


FAST = outcome(4, 2, 1.0, 900)
FAST_AND_SMALL = outcome(4, 1, 1.0004, 500)
MOST = outcome(8, 4, 3.0, 800)
FEWER = outcome(8, 2, 2.0, 700)
LARGEST = outcome(1, 1, 4.0, 400)
LARGEST_TWICE = outcome(1, 2, 5.0, 600)
TOO_BIG = outcome(16, 8, 0.5, 9000, "over memory")
UNKNOWN = outcome(32, 8, None, None, "not covered")
ALL = (UNKNOWN, TOO_BIG, LARGEST, LARGEST_TWICE, MOST, FEWER, FAST, FAST_AND_SMALL)


def test_the_fastest_comes_first_and_of_equals_the_smallest_and_the_rejected_last():
    expected = (FAST_AND_SMALL, FAST, FEWER, MOST, LARGEST, LARGEST_TWICE, TOO_BIG, UNKNOWN)
    assert ranked(ALL, Evaluator.SIMULATE) == ranked(ALL, Evaluator.AVGPIPE) == expected


def test_max_num_takes_the_most_microbatches_that_fit_and_then_the_most_pipelines():
    assert ranked(ALL, Evaluator.MAX_NUM)[:3] == (MOST, FEWER, FAST)
    assert ranked(ALL, Evaluator.MAX_NUM)[-2:] == (TOO_BIG, UNKNOWN)


def test_max_size_takes_the_largest_microbatches_that_fit_and_then_the_most_pipelines():
    assert ranked(ALL, Evaluator.MAX_SIZE)[:3] == (LARGEST_TWICE, LARGEST, FAST)


def test_the_plain_one_is_the_fastest_1f1b_that_fits():
    slow, fast = outcome(2, 1, 9.0, 1, advance=0), outcome(4, 1, 8.0, 1, advance=0)
    too_big = outcome(8, 1, 7.0, 1, "over memory", advance=0)
    assert best_plain((*ALL, slow, too_big, fast)) == fast
    assert best_plain(ALL) is None


def test_the_least_memory_counts_the_rejected_too():
    assert least((TOO_BIG, UNKNOWN)) == TOO_BIG
    assert least(ALL) == LARGEST
    assert least((UNKNOWN,)) is None


def test_on_the_front_nobody_is_beaten_in_time_and_memory_at_once():
    front = pareto(ALL)
    assert front == (FAST_AND_SMALL, LARGEST)
    assert pareto((UNKNOWN,)) == ()


def test_a_row_is_plain_data():
    assert tuned_row(FAST) == {
        "schedule": "avgpipe",
        "num_microbatches": 4,
        "num_pipelines": 2,
        "advance": 1,
        "num_chunks": None,
        "recomputes": False,
        "recompute_when": None,
        "microbatches_per_pipeline": 4,
        "microbatches": 8,
        "training": "elastic averaging",
        "seconds_per_batch": 1.0,
        "held_bytes": 900,
        "reason": None,
    }
    best_plain = tuned_row(outcome(4, 1, 1.0, 900, advance=0))
    assert (best_plain["schedule"], best_plain["microbatches"], best_plain["training"]) == ("1f1b", 4, "plain")
