"""A checkpoint is written while training goes on; what goes wrong there is not lost."""

from threading import Event

import pytest

from pipesched.executor.training import BackgroundWriter


def test_a_write_goes_on_beside_the_run_and_the_next_one_waits_for_it():
    written, may_end = [], Event()

    def write_first():
        may_end.wait()
        written.append(1)

    def write_second():
        written.append(2)

    with BackgroundWriter() as writer:
        writer.start(write_first)
        assert written == []
        may_end.set()
        writer.start(write_second)
        assert written[0] == 1
    assert written == [1, 2]


def fail():
    raise OSError("no room")


def test_what_a_write_failed_of_is_raised_once_where_the_run_next_asks_or_ends():
    with pytest.raises(OSError, match="no room"), BackgroundWriter() as writer:
        writer.start(fail)
    writer.check()
    writer.start(fail)
    with pytest.raises(OSError, match="no room"):
        writer.start(fail)


def test_a_run_that_fails_finishes_what_it_writes_and_says_what_it_failed_of():
    written = []

    def run():
        with BackgroundWriter() as writer:
            writer.start(lambda: written.append(1))
            raise ValueError("of the run")

    with pytest.raises(ValueError, match="of the run"):
        run()
    assert written == [1]
