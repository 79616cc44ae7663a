from pipesched.schedules.builders.chimera import chimera
from tests.schedules.builder_rules import parts


def test_a_unit_is_repeated_in_the_order_of_the_first_and_fits_between_its_backwards():
    p = 6
    first = [parts(row) for row in chimera(p, p).ops]
    both = [parts(row) for row in chimera(p, 2 * p).ops]
    for once, twice in zip(first, both, strict=True):
        for unit in range(2):
            unit_ops = [(op.phase, op.stage, op.microbatch - unit * p) for op in twice if op.microbatch // p == unit]
            assert unit_ops == [(op.phase, op.stage, op.microbatch) for op in once]
    assert [op.microbatch // p for op in both[0]] != sorted(op.microbatch // p for op in both[0])
