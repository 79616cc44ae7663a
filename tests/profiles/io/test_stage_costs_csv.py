import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import StageCost
from pipesched.profiles.io import load_stage_costs


@pytest.fixture
def load(tmp_path):
    def load_text(text):
        path = tmp_path / "costs.csv"
        path.write_bytes(text.encode())
        return load_stage_costs(path)

    return load_text


def test_rows_may_come_in_any_order_and_bytes_may_be_absent(load):
    costs = load("stage,forward_s,backward_s\n1,0.5,1\n0,0.25,2e-1\n")
    assert costs.stages == (StageCost(0.25, 0.2), StageCost(0.5, 1.0))


def test_every_column_is_read(load):
    names = "stage, forward_s, backward_input_s, backward_weight_s, output_bytes, saved_bytes, weight_bytes"
    (cost,) = load(f"{names}, optimizer_bytes, step_s, utilisation\n0, 1, 2, 3, 4, 5, 6, 7, 8, 0.5\n").stages
    assert cost == StageCost(1.0, None, 2.0, 3.0, 8.0, 4, 5, 6, 7, 0.5)


def test_what_w_needs_may_be_given_or_left_to_be_all_that_was_saved(load):
    stages = load("stage,forward_s,backward_s,saved_bytes,saved_for_weight_bytes\n0,1,2,100,40\n1,1,2,100,\n").stages
    assert [cost.saved_for_weight_bytes for cost in stages] == [40, None]


def test_the_overlap_of_all_stages_is_in_every_row_or_0(load):
    assert load("stage,forward_s,backward_s\n0,1,2\n1,1,2\n").overlap == 0.0
    assert load("stage,forward_s,backward_s,overlap\n0,1,2,0.75\n1,1,2,.75\n").overlap == 0.75
    assert load("stage,forward_s,backward_s,overlap\n0,1,2,1\n").overlap == 1.0


def test_a_spreadsheets_byte_order_mark_and_line_ends_do_not_matter(load):
    assert load("\ufeffstage,forward_s,backward_s\r\n0,1,2\r\n\r\n").stages == (StageCost(1.0, 2.0),)


def test_a_backward_may_be_whole_in_one_row_and_split_in_another(load):
    costs = load("stage,forward_s,backward_s,backward_input_s,backward_weight_s\n0,1,2,,\n1,1,,1,1\n")
    assert costs.stages == (StageCost(1.0, 2.0), StageCost(1.0, None, 1.0, 1.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got 0 rows"),
        ("stage,forward_s,backward_s\n", "got 1 rows"),
        ("stage,forward_s\n0,1\n", "no backward"),
        ("stage,forward_s,backward_input_s\n0,1,1\n", "no backward"),
        ("stage,backward_s\n0,1\n", "no column forward_s"),
        ("stage,forward_s,backward_s,color\n0,1,1,1\n", "row 1: got column 'color'"),
        ("stage,forward_s,backward_s,stage\n0,1,1,0\n", "column stage twice"),
        ("stage,forward_s,backward_s\n0,nan,1\n", "row 2, column forward_s: got 'nan'"),
        ("stage,forward_s,backward_s\n0,1,1e999\n", "row 2, column backward_s: got '1e999'"),
        ("stage,forward_s,backward_s\n0,-1,1\n", "got '-1', expected seconds"),
        ("stage,forward_s,backward_s\n0,,1\n", "got '', expected seconds"),
        ("stage,forward_s,backward_s\n0,1,\n", "got no backward"),
        ("stage,forward_s,backward_s\n0,1,1\n2,1,1\n", "no stage 1 but stage 2"),
        ("stage,forward_s,backward_s\n0,1,1\n0,1,1\n", "row 3, column stage: got stage 0 again"),
        ("stage,forward_s,backward_s\n0,1\n", "got 2 cells, expected 3"),
        ("stage,forward_s,backward_s\n0,1,1,1\n", "got 4 cells"),
        ("stage,forward_s,backward_s\n-1,1,1\n", "column stage: got '-1'"),
        ("stage,forward_s,backward_s,saved_bytes\n0,1,1,1.5\n", "column saved_bytes: got '1.5'"),
        ("stage,forward_s,backward_s,saved_bytes\n0,1,1,\n", "column saved_bytes: got ''"),
        ("stage,forward_s,backward_s,saved_for_weight_bytes\n0,1,1,-1\n", "column saved_for_weight_bytes: got '-1'"),
        ("stage,forward_s,backward_s,utilisation\n0,1,1,0\n", "a share above 0"),
        ("stage,forward_s,backward_s,utilisation\n0,1,1,2\n", "a share above 0"),
        ("stage,forward_s,backward_s,overlap\n0,1,1,1.5\n", "got '1.5', expected a share from 0 to 1"),
        ("stage,forward_s,backward_s,overlap\n0,1,1,nan\n", "column overlap: got 'nan'"),
        ("stage,forward_s,backward_s,overlap\n0,1,1,\n", "column overlap: got ''"),
        (
            "stage,forward_s,backward_s,overlap\n0,1,1,0\n1,1,1,0.5\n",
            "row 3, column overlap: got 0.5, expected 0 as above",
        ),
        ('stage,forward_s,backward_s\n0,"1,1\n', "check the quotes"),
        ("stage,forward_s,backward_s\n99999999999999999999,1,1\n", "column stage"),
    ],
)
def test_a_fault_is_told_with_file_row_and_column(load, text, message):
    with pytest.raises(ProfileError) as caught:
        load(text)
    assert message in str(caught.value)
    assert "costs.csv: " in str(caught.value)
    assert "expected" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_faults_are_collected_and_the_rest_counted(load):
    with pytest.raises(ProfileError, match=r"row 2.*row 3.*row 4.*and 2 more"):
        load("stage,forward_s,backward_s\n" + "x,1,1\n" * 5)


def test_a_missing_file_a_folder_and_bytes_are_told_in_one_line(tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.csv", tmp_path, tmp_path / "binary.csv"):
        with pytest.raises(ProfileError, match="expected") as caught:
            load_stage_costs(path)
        assert "\n" not in str(caught.value)


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet='stage,forwd_bk0123456789.-"\n\r\x00\u2028 e', max_size=60), st.booleans())
def test_no_text_at_all_raises_anything_else(tmp_path_factory, text, with_header):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_text(("stage,forward_s,backward_s\n" if with_header else "") + text, encoding="utf-8", newline="")
    message = ""
    try:
        load_stage_costs(path)
    except ProfileError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1
