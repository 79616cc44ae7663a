"""Objects made of others are found by the identity of these, and the last used ones are kept."""

import pickle

from pipesched.simulator.search.kept import Kept


def test_equal_sources_are_two_and_the_same_source_is_one():
    kept, first, second = Kept(4), [1], [1]
    made = kept.get((first,), "key", object)
    assert kept.get((first,), "key", object) is made
    assert kept.get((second,), "key", object) is not made
    assert kept.get((first,), "other key", object) is not made
    assert len(kept) == 3


def test_the_last_used_objects_stay():
    kept, source = Kept(2), object()
    made = [kept.get((source,), key, object) for key in "ab"]
    assert kept.get((source,), "a", object) is made[0]
    kept.get((source,), "c", object)
    assert kept.get((source,), "a", object) is made[0]
    assert kept.get((source,), "b", object) is not made[1]
    assert len(kept) == 2


def test_another_process_makes_its_own():
    kept = Kept(2)
    kept.get((kept,), "key", object)
    assert len(pickle.loads(pickle.dumps(kept))) == 0
