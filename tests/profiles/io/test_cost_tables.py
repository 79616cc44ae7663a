import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import StageCost
from pipesched.profiles.io import load_cost_table, load_layer_costs, load_stage_costs


@pytest.fixture
def load(tmp_path):
    def load_text(text, read=load_stage_costs):
        path = tmp_path / "costs.csv"
        path.write_bytes(text.encode())
        return read(path)

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


def test_bytes_may_have_a_unit(load):
    text = "stage,forward_s,backward_s,output_bytes,saved_bytes,weight_bytes\n0,1,2,16MiB,1.5 kB,7B\n"
    (cost,) = load(text).stages
    assert (cost.output_bytes, cost.saved_bytes, cost.weight_bytes) == (16 * 2**20, 1500, 7)
    with pytest.raises(ProfileError, match=r"column weight_bytes: got .*, or a size as 16MiB; correct the cell"):
        load(text.replace("7B", "7b"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got 0 rows"),
        ("stage,forward_s\n0,1\n", "no backward"),
        ("stage,forward_s,backward_input_s\n0,1,1\n", "no backward"),
        ("stage,forward_s,backward_s\n99999999999999999999,1,1\n", "column stage"),
        ("stage,backward_s\n0,1\n", "no column forward_s"),
        ("stage,forward_s,backward_s,color\n0,1,1,1\n", "row 1: got column 'color'"),
        ("stage,forward_s,backward_s,stage\n0,1,1,0\n", "column stage twice"),
        ("stage,forward_s,backward_s\n0,nan,1\n", "row 2, column forward_s: got 'nan'"),
        ("stage,forward_s,backward_s\n0,1\uff10,1\n", "row 2, column forward_s: got '1\uff10', expected seconds"),
        ("stage,forward_s,backward_s\n0,1_0,1\n", "row 2, column forward_s: got '1_0', expected seconds"),
        ("stage,forward_s,backward_s\n0,-1,1\n", "got '-1', expected seconds"),
        ("stage,forward_s,backward_s\n0,1,\n", "got no backward"),
        ("stage,forward_s,backward_s\n0,1,1\n2,1,1\n", "no stage 1 but stage 2"),
        ("stage,forward_s,backward_s\n0,1,1\n0,1,1\n", "row 3, column stage: got stage 0 again"),
        ("stage,forward_s,backward_s\n0,1\n", "got 2 cells, expected 3"),
        ("stage,forward_s,backward_s\n-1,1,1\n", "column stage: got '-1'"),
        ("stage,forward_s,backward_s,saved_bytes\n0,1,1,1.5\n", "column saved_bytes: got '1.5'"),
        ("stage,forward_s,backward_s,saved_for_weight_bytes\n0,1,1,-1\n", "column saved_for_weight_bytes: got '-1'"),
        ("stage,forward_s,backward_s,utilisation\n0,1,1,0\n", "a share above 0"),
        ("stage,forward_s,backward_s,overlap\n0,1,1,1.5\n", "got '1.5', expected a share from 0 to 1"),
        (
            "stage,forward_s,backward_s,overlap\n0,1,1,0\n1,1,1,0.5\n",
            "row 3, column overlap: got 0.5, expected 0 as in the rows above",
        ),
        ('stage,forward_s,backward_s\n0,"1,1\n', "check the quotes"),
        ("stage;forward_s;backward_s\n0;1,5;2\n", "row 1: got ';' between columns, expected ','"),
        ("0,1,2\n1,1,2\n", "row 1: got numbers, expected the names of the columns; start with: stage,forward_s"),
        ("stage,fwd_ms,forward_s,b\n0,1,1,2\n", "column forward_s as 'fwd_ms' and 'forward_s', expected once"),
        ("stage,f,b,w\n0,1,1,1\n", "column backward_weight_s without the other half"),
        ("stage,forward_ns,b\n0,1,1\n", "_ms or _us in place of _s"),
        (
            "stage,fwd_ms,bwd\n0,1,2\n",
            "row 1: got column 'bwd' without a unit, expected one as 'fwd_ms' has; write bwd_ms",
        ),
        ("stage,fwd_ms,b_ms\n0,x,1\n", "row 2, column fwd_ms: got 'x', expected milliseconds"),
        ("layer,f,b\n0,1,1\n", "row 1: got column layer, expected a row per stage"),
    ],
)
def test_a_fault_is_told_with_file_row_and_column(load, text, message):
    with pytest.raises(ProfileError) as caught:
        load(text)
    assert message in str(caught.value)
    assert "costs.csv: " in str(caught.value)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f,b\n", "got 1 rows, expected a header and a row per layer; start with: forward_s,backward_s"),
        ("stage,f,b\n0,1,1\n", "row 1: got column stage, expected a row per layer"),
        ("f,b,utilisation\n1,1,1\n", "row 1: got column 'utilisation'"),
        ("layer,f,b\n0,1,1\n2,1,1\n1,1,1\n", "row 4, column layer: got 1 after 2, expected rising numbers"),
        ("layer,b\nembed,1\n", "got no column forward_s"),
        ("f,b,overlap\n1,1,0\n1,1,1\n", "row 3, column overlap: got 1, expected 0 as in the rows above"),
        ("f,b\n" + "1,2\n" * 2001, "got 2001 layers, expected at most 2000; merge neighbouring layers"),
    ],
)
def test_a_fault_of_a_table_of_layers_is_told_with_file_row_and_column(load, text, message):
    with pytest.raises(ProfileError) as caught:
        load(text, load_layer_costs)
    assert message in str(caught.value)
    assert "costs.csv: " in str(caught.value)


@pytest.mark.parametrize(
    "header", ["forward_s,backward_s", "Forward,BWD", "f_s,b", "fwd [ms],backward (ms)", "Forward us,b-us", "f_µs,b_us"]
)
def test_columns_may_be_called_as_people_call_them_in_seconds_and_parts_of_them(load, header):
    """Three quarters of a second, and two."""
    factor = 10**6 if header[-2] == "u" else 1000 if "ms" in header else 1
    costs = load(f"{header}\n{0.75 * factor},{2 * factor}\n", load_layer_costs)
    assert costs.layers == (StageCost(0.75, 2.0),)


def test_every_half_of_a_backward_has_a_short_name(load):
    (cost,) = load("f_ms,i_ms,w_ms,r_ms,step_ms\n10,20,30,40,50\n", load_layer_costs).layers
    assert cost == StageCost(0.01, None, 0.02, 0.03, step_s=0.05, recompute_s=0.04)


def test_a_table_with_a_column_stage_is_of_stages_and_any_other_of_layers(load):
    assert load("stage,f,b\n1,3,4\n0,1,2\n", load_cost_table).stages == (StageCost(1.0, 2.0), StageCost(3.0, 4.0))
    layers = (StageCost(3.0, 4.0), StageCost(1.0, 2.0))
    assert load("f,b\n3,4\n1,2\n", load_cost_table).layers == layers
    assert load("layer,f,b\nlast,3,4\nfirst,1,2\n", load_cost_table).layers == layers
    assert load("layer,f,b\n3,3,4\n10,1,2\n", load_cost_table).layers == layers


def test_faults_are_collected_and_the_rest_counted(load):
    with pytest.raises(ProfileError, match=r"row 2.*row 3.*row 4.*and 2 more"):
        load("stage,forward_s,backward_s\n" + "x,1,1\n" * 5)


def test_a_missing_file_a_folder_and_bytes_are_told_in_one_line(tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.csv", tmp_path, tmp_path / "binary.csv"):
        with pytest.raises(ProfileError, match="expected"):
            load_stage_costs(path)
