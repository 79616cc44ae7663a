from pipesched.schedules import MemorySample
from pipesched.simulator.memory import InFlight
from pipesched.simulator.views import memory_table


def test_a_row_for_every_instant_at_which_anything_changes():
    counts = [InFlight(0, 0.0, 0.0), InFlight(0, 2.0, 1.0), InFlight(1, 1.0, 0.5)]
    samples = [MemorySample(0, 0.0, (("a", 1), ("b", 2))), MemorySample(0, 1.0, (("a", 5), ("b", 2)))]
    assert memory_table(counts, [*samples, MemorySample(1, 1.0, (("a", 7), ("b", 0)))]) == [
        {"device": 0, "time_s": 0.0, "microbatches": 0.0, "total_bytes": 3, "a_bytes": 1, "b_bytes": 2},
        {"device": 0, "time_s": 1.0, "microbatches": 0.0, "total_bytes": 7, "a_bytes": 5, "b_bytes": 2},
        {"device": 0, "time_s": 2.0, "microbatches": 1.0, "total_bytes": 7, "a_bytes": 5, "b_bytes": 2},
        {"device": 1, "time_s": 1.0, "microbatches": 0.5, "total_bytes": 7, "a_bytes": 7, "b_bytes": 0},
    ]


def test_micro_batches_alone_where_no_bytes_are_known():
    assert memory_table([InFlight(0, 0.0, 1.0)], []) == [{"device": 0, "time_s": 0.0, "microbatches": 1.0}]


def test_a_time_with_more_held_on_the_way_through_it_has_a_row_for_that_too():
    samples = [MemorySample(0, 2.0, (("a", 9),)), MemorySample(0, 2.0, (("a", 5),))]
    assert memory_table([InFlight(0, 0.0, 0.0), InFlight(0, 2.0, 1.0)], samples) == [
        {"device": 0, "time_s": 0.0, "microbatches": 0.0},
        {"device": 0, "time_s": 2.0, "microbatches": 0.0, "total_bytes": 9, "a_bytes": 9},
        {"device": 0, "time_s": 2.0, "microbatches": 1.0, "total_bytes": 5, "a_bytes": 5},
    ]
