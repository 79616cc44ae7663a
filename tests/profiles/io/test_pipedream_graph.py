"""Graphs of PipeDream's profiler, read as chains."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles import ProfileError
from pipesched.profiles.io import load_profile
from pipesched.profiles.io.pipedream_graph import read_pipedream_graph
from pipesched.profiles.io.profile_json import profile_text, read_profile
from tests.properties import examples

PUBLISHED = Path(__file__).parents[3] / "profiles" / "data" / "pipedream"


def node(name, forward=1.0, backward=2.0, activation="10.0", parameters=8.0, what="Linear(4, 4)"):
    return (
        f"node{name} -- {what} -- forward_compute_time={forward}, backward_compute_time={backward}, "
        f"activation_size={activation}, parameter_size={parameters}"
    )


def graph(nodes, edges):
    return "\n".join([*nodes, *(f"\tnode{a} -- node{b}" for a, b in edges)])


def names(profile):
    return [layer.name.split()[0].removeprefix("node") for layer in profile.layers]


def test_a_chain_is_read_in_the_order_of_its_edges_in_seconds_and_bytes():
    text = graph([node("2", 3.0, 4.0, "20.0", 12.0), node("1")], [("1", "2")])
    profile = read_pipedream_graph(text, "F")
    first, second = profile.layers
    assert names(profile) == ["1", "2"]
    assert (first.measurements[0].forward_s, second.measurements[0].backward_s) == (0.001, 0.004)
    assert (first.weight_bytes, second.weight_bytes) == (8, 12)
    assert (first.measurements[0].output_bytes, second.measurements[0].output_bytes) == (10, 0)


def test_all_that_is_made_before_a_cut_and_used_behind_it_crosses_it_once():
    """The drawing of the module: 1 and 2 are the longer branch; 0 is used by 1 and 3."""
    nodes = [node(name, activation=f"{10 ** int(name)}.0", forward=1.0 + (name == "1")) for name in "01234"]
    text = graph(nodes, [("0", "1"), ("1", "2"), ("0", "3"), ("2", "4"), ("3", "4")])
    profile = read_pipedream_graph(text, "F")
    assert names(profile) == ["0", "1", "2", "3", "4"]
    assert [layer.measurements[0].output_bytes for layer in profile.layers] == [1, 11, 101, 1100, 0]
    assert [layer.measurements[0].input_bytes for layer in profile.layers] == [0, 1, 11, 101, 1100]


def test_inputs_take_no_time_and_their_data_is_held_by_the_first_layer():
    text = graph([node("1", 600.0, what="Input0", activation="7.0"), node("2")], [("1", "2")])
    profile = read_pipedream_graph(text, "F")
    assert names(profile) == ["2"]
    assert profile.seconds_of_layers(1) == (0.003,)
    assert profile.layers[0].measurements[0].input_bytes == 7


def test_the_tensors_of_one_output_add_up():
    text = graph([node("1", activation="[6.0; 3.0; 1.0]"), node("2")], [("1", "2")])
    assert read_pipedream_graph(text, "F").layers[0].measurements[0].output_bytes == 10


def test_stages_of_the_file_are_those_of_its_layers_without_gaps_and_without_inputs():
    """PipeDream's optimizer puts inputs into the first stage."""
    nodes = [node("0", what="Input0"), node("1"), node("2"), node("3")]
    staged = [f"{line} -- stage_id={stage}" for line, stage in zip(nodes, (0, 1, 4, 4), strict=True)]
    profile = read_pipedream_graph(graph(staged, [("0", "1"), ("1", "2"), ("2", "3")]), "F")
    assert profile.graph.given_counts == (1, 2)
    assert read_pipedream_graph(graph(nodes, [("0", "1")]), "F").graph.given_counts == ()


def test_a_stage_holds_its_input_and_the_outputs_of_its_layers():
    text = graph([node("1"), node("2", activation="20.0"), node("3", activation="5.0")], [("1", "2"), ("2", "3")])
    costs = read_pipedream_graph(text, "F").costs_of_layers(((0, 1), (1, 3)), 1)
    assert [cost.saved_bytes for cost in costs.stages] == [10, 10 + 20 + 5]


@given(st.data())
def test_any_graph_without_circles_is_a_chain_of_all_its_nodes(data):
    count = data.draw(st.integers(1, 9))
    edges = [(a, b) for b in range(count) for a in range(b) if data.draw(st.booleans())]
    label = data.draw(st.permutations(range(count)))
    size = [data.draw(st.integers(0, 99)) for _ in range(count)]
    nodes = [node(label[i], forward=i, activation=f"{size[i]}.0") for i in range(count)]
    profile = read_pipedream_graph(graph(nodes, [(label[a], label[b]) for a, b in edges]), "F")
    order = [label.index(int(name)) for name in names(profile)]
    assert sorted(order) == list(range(count))
    assert all(order.index(a) < order.index(b) for a, b in edges)
    for cut, layer in enumerate(profile.layers, 1):
        crossing = {a for a, b in edges if a in order[:cut] and b in order[cut:]}
        assert layer.measurements[0].output_bytes == sum(size[a] for a in crossing)


@pytest.mark.parametrize(
    ("name", "millions"), [("vgg16", 138.36), ("resnet50", 25.56), ("alexnet", 61.1), ("gnmt", 193.77)]
)
def test_published_profiles_have_the_parameters_of_their_models(name, millions):
    text = (PUBLISHED / f"{name}.graph.txt").read_text()
    profile = read_pipedream_graph(text, name)
    assert sum(layer.weight_bytes for layer in profile.layers) / 4e6 == pytest.approx(millions, abs=0.01)
    times = re.findall(r"-- (?!Input)[^\n]* -- forward_compute_time=([0-9.]+), backward_compute_time=([0-9.]+)", text)
    assert sum(profile.seconds_of_layers(1)) == pytest.approx(sum(float(a) + float(b) for a, b in times) / 1e3)


def test_a_graph_is_a_profile_like_any_other():
    profile = load_profile(PUBLISHED / "gnmt.graph.txt")
    assert read_profile(profile_text(profile, "F"), "F") == profile


ONE, TWO = node("1"), node("2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "got no layers"),
        (node("1", what="Input"), "got no layers"),
        ("hello", "line 1: got 'hello'"),
        (graph([ONE, ONE], []), "line 2: got a second node 'node1'"),
        (graph([ONE], [("1", "9")]), "line 2: got an edge of 'node9'"),
        (graph([ONE, TWO], [("1", "2"), ("2", "1")]), "cycle node"),
        (node("1", forward="nan"), "line 1: forward_compute_time: got 'nan'"),
        (node("1", activation="[1; x]"), "activation_size"),
        (node("1", parameters="many"), "parameter_size"),
        (ONE.replace("parameter_size", "size"), "expected a node"),
        (node("1", what="x" * 10_000), "line 1: got 10"),
        (graph([ONE, TWO + " -- stage_id=3"], []), "a stage_id of 1 of 2 layers"),
        (graph([ONE + " -- stage_id=1", TWO + " -- stage_id=0"], [("1", "2")]), "node2: got stage_id=0"),
    ],
)
def test_what_is_no_graph_is_refused_in_one_line(text, said):
    with pytest.raises(ProfileError) as caught:
        read_pipedream_graph(text, "F")
    assert said in str(caught.value)
    assert str(caught.value).startswith("F: ")


@examples(60)
@given(st.data())
def test_a_damaged_graph_is_read_or_refused_in_one_line(data):
    text = graph([ONE, node("2", activation="[1.0; 2.0]"), node("3")], [("1", "2"), ("2", "3"), ("1", "3")])
    place = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(place, min(len(text), place + 20)))
    damaged = text[:place] + data.draw(st.text(max_size=3)) + text[end:]
    said = ""
    try:
        assert read_pipedream_graph(damaged, "F").layers
    except ProfileError as error:
        said = str(error)
    assert said == "" or said.startswith("F: ")
    assert len(said.splitlines()) <= 1


def test_a_long_chain_is_read_as_well():
    count = 5000
    text = graph([node(str(i)) for i in range(count)], [(str(i), str(i + 1)) for i in range(count - 1)])
    assert len(read_pipedream_graph(text, "F").layers) == count
