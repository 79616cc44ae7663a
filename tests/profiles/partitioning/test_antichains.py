"""Graphs cut at their antichains, against all chains of sets that have all that their layers need."""

from itertools import combinations, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.io.pipedream_graph import read_pipedream_graph, staged_graph
from pipesched.profiles.partitioning import (
    arranged,
    by_memory,
    by_replicas,
    cut_layers,
    has_too_many_prefixes,
)
from tests.properties import examples


@st.composite
def graphs(draw):
    """Draw (needed nodes, milliseconds, bytes of outputs, text of the file)."""
    count = draw(st.integers(2, 7))
    needs = [{a for a in range(b) if draw(st.booleans())} for b in range(count)]
    times = [draw(st.integers(0, 9)) for _ in range(count)]
    sizes = [draw(st.integers(0, 99)) for _ in range(count)]
    return needs, times, sizes, text_of(needs, times, sizes)


def text_of(needs, times, sizes=None, weights=None, stages=None):
    nodes = [
        f"n{i} -- L -- forward_compute_time={time}.0, backward_compute_time=0.0, "
        f"activation_size={sizes[i] if sizes else 1}.0, parameter_size={weights[i] if weights else 0}.0"
        + (f" -- stage_id={stages[i]}" if stages else "")
        for i, time in enumerate(times)
    ]
    return "\n".join([*nodes, *(f"\tn{a} -- n{b}" for b, needed in enumerate(needs) for a in needed)])


def prefixes(needs):
    nodes = range(len(needs))
    sets = [frozenset(some) for size in range(len(needs) + 1) for some in combinations(nodes, size)]
    return [prefix for prefix in sets if all(needs[node] <= prefix for node in prefix)]


def chains(needs, num_stages):
    """Yield all prefixes, one behind each stage, that a pipeline of the graph can have."""
    closed = prefixes(needs)

    def longer(chain):
        if len(chain) == num_stages:
            yield from ([*chain, closed[-1]] for _ in range(chain[-1] < closed[-1]))
            return
        for prefix in closed:
            if chain[-1] < prefix < closed[-1]:
                yield from longer([*chain, prefix])

    return longer([closed[0]])


@examples(50)
@given(graphs(), st.data())
def test_no_cut_at_antichains_has_a_faster_slowest_stage(graph, data):
    needs, times, sizes, text = graph
    num_stages = data.draw(st.integers(1, len(needs)))
    least_ms = min(max(sum(times[n] for n in b - a) for a, b in pairwise(chain)) for chain in chains(needs, num_stages))
    profile, bounds = cut_layers(read_pipedream_graph(text, "F"), None, 1, num_stages)
    seconds = profile.seconds_of_layers(1)
    assert max(sum(seconds[a:b]) for a, b in bounds) == pytest.approx(least_ms / 1e3)
    order = [int(layer.name.split()[0][1:]) for layer in profile.layers]
    for cut, layer in enumerate(profile.layers, 1):
        assert all(needs[node] <= set(order[:cut]) for node in order[:cut])
        crossing = {a for b in order[cut:] for a in needs[b] if a in order[:cut]}
        assert layer.measurements[0].output_bytes == sum(sizes[node] for node in crossing)


def test_an_arranged_graph_stays_as_it_is():
    needs = [set(), {0}, {1}, {0}, {2, 3}]
    profile = arranged(read_pipedream_graph(text_of(needs, [1, 3, 5, 2, 1]), "F"), 2)
    assert arranged(profile, 2) == profile


def test_a_graph_of_too_many_antichains_is_cut_along_one_chain():
    """16 branches of one node each have 2^16 prefixes."""
    profile = read_pipedream_graph(text_of([set(), *[{0}] * 16, set(range(1, 17))], [1] * 18), "F")
    assert has_too_many_prefixes(profile)
    assert arranged(profile, 3) == profile
    assert len(cut_layers(profile, None, 1, 3)[1]) == 3


def test_stages_of_the_file_are_taken_where_they_are_as_many():
    needs = [set(), {0}, {0}, {1, 2}]
    profile = read_pipedream_graph(text_of(needs, [1, 2, 3, 4], stages=[0, 4, 0, 4]), "F")
    given, bounds = cut_layers(profile, None, 1, 2)
    assert bounds == ((0, 2), (2, 4))
    assert [layer.name for layer in given.layers] == ["n0 L", "n2 L", "n1 L", "n3 L"]
    assert [sum(given.seconds_of_layers(1)[a:b]) for a, b in bounds] == pytest.approx([0.004, 0.006])
    anew, bounds = cut_layers(profile, "balanced", 1, 3)
    assert max(sum(anew.seconds_of_layers(1)[a:b]) for a, b in bounds) == pytest.approx(0.004)


@examples(50)
@given(graphs(), st.integers(1, 4), st.booleans(), st.data())
def test_no_replication_of_a_cut_at_antichains_is_faster(graph, num_devices, is_paper, data):
    """The formulas of the paper and of its optimizer, for every chain of prefixes and all replicas."""
    needs, times, sizes, _ = graph
    weights = [data.draw(st.integers(0, 9)) * 4 for _ in needs]
    text = text_of(needs, times, sizes, weights)
    bandwidth = data.draw(st.sampled_from((1e3, 1e5)))

    def stage_s(layers, count):
        work_s, reduced = sum(times[n] for n in layers) / 1e3, (count - 1) * sum(weights[n] for n in layers) / bandwidth
        return max(work_s, 2 * reduced) / count if is_paper else (work_s + 4 * reduced / count) / count

    def cut_s(before, behind):
        crossing = {a for b in behind for a in needs[b] if a in before}
        return 2 * sum(sizes[n] for n in crossing) / bandwidth if is_paper else 0.0

    least_s = min(
        max(
            *(stage_s(b - a, count) for (a, b), count in zip(pairwise(chain), counts, strict=True)),
            *(cut_s(prefix, chain[-1] - prefix) for prefix in chain[1:]),
        )
        for num_stages in range(1, min(len(needs), num_devices) + 1)
        for counts in product(range(1, num_devices + 1), repeat=num_stages)
        if sum(counts) == num_devices
        for chain in chains(needs, num_stages)
    )
    profile, form = read_pipedream_graph(text, "F"), "paper" if is_paper else "published"
    cluster = flat(num_devices, Link(0.0, bandwidth))
    partitioned = by_replicas(profile, 1, cluster, num_devices, form=form)
    assert partitioned.slowest_s == pytest.approx(least_s)
    work_s = sum(stage.compute_s * stage.replicas for stage in partitioned.stages)
    assert work_s == pytest.approx(sum(times) / 1e3)
    assert sorted(partitioned.order) == list(range(len(needs)))


@examples(50)
@given(graphs(), st.data())
def test_no_cut_at_antichains_holds_less_where_all_layers_take_time(graph, data):
    needs, times, sizes, _ = graph
    num_stages = data.draw(st.integers(1, len(needs)))
    weights = [data.draw(st.integers(0, 9)) for _ in needs]
    text = text_of(needs, [time + 1 for time in times], sizes, weights)

    def held(before, behind, in_flight):
        own = behind - before
        read = {a for b in behind_all(before) for a in needs[b] if a in before}
        kept = sum(sizes[n] for n in read) + sum(sizes[n] for n in own)
        return 2 * sum(weights[n] for n in own) + in_flight * kept

    def behind_all(before):
        return set(range(len(needs))) - before

    least = min(
        max(held(a, b, num_stages - stage) for stage, (a, b) in enumerate(pairwise(chain)))
        for chain in chains(needs, num_stages)
    )
    partitioned = by_memory(read_pipedream_graph(text, "F"), 1, flat(num_stages), num_stages)
    assert max(stage.memory_bytes for stage in partitioned.stages) == least


def test_a_graph_with_its_stages_written_is_read_as_cut():
    needs = [set(), {0}, {1}, {0}, {2, 3}]
    text = text_of(needs, [1, 3, 5, 2, 1], stages=[0, 0, 0, 0, 0])
    staged = staged_graph(text, "F", [0, 0, 1, 0, 1])
    given, bounds = cut_layers(read_pipedream_graph(staged, "F"), None, 1, 2)
    assert bounds == ((0, 3), (3, 5))
    assert {layer.name for layer in given.layers[:3]} == {"n0 L", "n1 L", "n3 L"}
