from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.check import Cell, excerpt


def drawn(cells: tuple[Cell, ...]) -> str:
    return " ".join(f">{cell.text}<" if cell.is_marked else cell.text for cell in cells)


def test_marks_are_shown_with_two_ops_around_them_and_dots_for_the_rest():
    rows = excerpt(gpipe(2, 6), [(0, 3), (1, 0)])
    assert {rank: drawn(cells) for rank, cells in rows.items()} == {
        0: "... 0F1 0F2 >0F3< 0F4 0F5 ...",
        1: ">1F0< 1F1 1F2 ...",
    }


def test_what_lies_between_two_marks_is_left_out_once():
    (cells,) = excerpt(gpipe(1, 6), [(0, 12), (0, 0), (0, 12)]).values()
    assert drawn(cells) == ">0F0< 0F1 0F2 ... 0B4 0B5 >0STEP<"
    (cells,) = excerpt(gpipe(1, 2), [(0, 0), (0, 4)]).values()
    assert drawn(cells) == ">0F0< 0F1 0B0 0B1 >0STEP<"


def test_without_places_there_is_nothing_to_show():
    assert excerpt(gpipe(2, 2), []) == {}
