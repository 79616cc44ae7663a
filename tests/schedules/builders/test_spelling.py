from pipesched.schedules.builders._spelling import Letter, first_turns, spelled
from pipesched.schedules.ops import Phase, Step

ROWS = ["FFGbfBiS", "fFBbS"]
LETTERS = {
    "F": Letter(Phase.FORWARD, (0, 1), chunks=(0, 2, 4), microbatches=(5, 6, 8), firsts=(0, 10)),
    "G": Letter(Phase.FORWARD, (0, 1), turns_of="F", is_overlapped=True),
    "f": Letter(Phase.FORWARD, (8, 9)),
    "B": Letter(Phase.BACKWARD, (0, 1), firsts=(3, 4)),
    "b": Letter(Phase.BACKWARD, (8, 9), microbatches=(2, 1)),
    "i": Letter(Phase.BACKWARD_INPUT, (8, 9), turns_of="b"),
    "S": Letter(Step, (0, 1)),
}
MEANING = (
    "0F5 2F6 (4F8;8B2)OVERLAP_F_B 8F0 0B3 8I1 0STEP",
    "9F0 1F15 1B4 9B2 1STEP",
)


def test_the_nth_letter_is_its_nth_op():
    columns = spelled(ROWS, LETTERS)
    assert tuple(" ".join(map(str, columns.ops(rank))) for rank in range(2)) == MEANING


def test_letters_need_not_be_bytes():
    letters = {"\u4e00": Letter(Phase.FORWARD, (0, 1)), "\u4e01": Letter(Phase.BACKWARD, (0, 1), turns_of="\u4e00")}
    columns = spelled(["\u4e00\u4e01", "\u4e01\u4e00"], letters)
    assert tuple(" ".join(map(str, columns.ops(rank))) for rank in range(2)) == ("0F0 0B1", "1B0 1F1")


def test_turns_beyond_the_first_are_left_out():
    assert first_turns("FFFBFBBB", 2) == "FFBB"
