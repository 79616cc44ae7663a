import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs import LayerExecution, SharingPrice, Variation
from pipesched.profiles.io import load_cluster, load_profile, save_cluster, save_profile
from pipesched.schedules import Yardstick
from pipesched.schedules.ops import backward, backward_input
from tests.profiles.hand_profiles import layer, measurement, profile, split

ROOT = Path(__file__).parents[3]

CLUSTER = Cluster(
    (Device(), Device(0.5, 10**9, 1)),
    intra=Link(1e-5, 1e9),
    inter=Link(1e-4),
    links=((0, 1, Link(2e-5, 3e9)),),
    origin="by hand",
)


_SINCE = {
    "split": 2, "work": 3, "kind": 3, "variation": 4, "sharing": 5, "execution": 6, "yardstick": 7, "launch_s": 8,
    "working_bytes": 8, "gradient_bytes": 9,
}  # fmt: skip


def aged(fields, version):
    """Return a profile's fields as an earlier version has them."""
    parts = [
        fields,
        fields["provenance"],
        *fields["layers"],
        *(m for row in fields["layers"] for m in row["measurements"]),
    ]
    for part in parts:
        for name in [name for name in part if _SINCE.get(name, 0) > version]:
            del part[name]
    return fields | {"version": version}


def test_a_profile_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "p.json"
    first, second = layer(measurement(1), measurement(4)), layer(measurement(1, split=split()), measurement(4))
    before = profile(first, second)
    save_profile(before, path)
    assert load_profile(path) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.json"]


def test_how_seconds_vary_is_read_as_it_was_written(tmp_path):
    rising = tuple(1.0 + 0.01 * step for step in range(11))
    varied = replace(profile(layer(measurement(1))), variation=Variation(rising, (1.0,) * 11))
    save_profile(varied, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == varied
    fields = json.loads((tmp_path / "p.json").read_text())
    fields["variation"]["passes"].reverse()
    (tmp_path / "p.json").write_text(json.dumps(fields))
    with pytest.raises(ProfileError, match=r"variation.passes: got falling factors, expected rising ones"):
        load_profile(tmp_path / "p.json")
    (tmp_path / "p.json").write_text(json.dumps(aged(fields, 3)))
    assert load_profile(tmp_path / "p.json") == profile(layer(measurement(1)))


def test_what_sharing_a_core_costs_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "p.json"
    rising = tuple(1.0 + 0.01 * step for step in range(11))
    prices = SharingPrice(2, rising), SharingPrice(3, (1.5,) * 11)
    plain = profile(layer(measurement(1)))
    save_profile(replace(plain, sharing=prices), path)
    assert load_profile(path) == replace(plain, sharing=prices)
    written = json.loads(path.read_text())
    for edit, message in (
        (lambda f: f["sharing"].reverse(), r"sharing: got \[3, 2\] processes, expected numbers that rise"),
        (lambda f: f["sharing"][0]["factors"].reverse(), r"sharing.0.factors: got falling factors"),
        (lambda f: f["sharing"][0].update(num_processes=1), r"sharing.0.num_processes: got 1, expected at least 2"),
        (lambda f: aged(f, 5) and f.update(version=4), r"profile: got a sharing, expected none in version 4"),
    ):
        path.write_text(edited(json.dumps(written), edit))
        with pytest.raises(ProfileError, match=message):
            load_profile(path)
    path.write_text(json.dumps(aged(written, 4)))
    assert load_profile(path) == plain


def test_a_cluster_is_read_as_it_was_written(tmp_path):
    save_cluster(CLUSTER, tmp_path / "c.json")
    assert load_cluster(tmp_path / "c.json") == CLUSTER
    assert json.loads((tmp_path / "c.json").read_text())["inter"]["bandwidth_bytes_per_s"] is None


def test_a_cluster_written_by_hand_may_leave_out_what_is_usual(tmp_path):
    text = '{"format": "pipesched-cluster", "version": 1, "devices": [{}, {"speed": 2}], "intra": '
    (tmp_path / "c.json").write_text(text + '{"latency_s": 0, "bandwidth_bytes_per_s": null}}')
    assert load_cluster(tmp_path / "c.json") == Cluster((Device(), Device(2.0)))


def test_a_profile_from_before_copies_were_measured_is_read(tmp_path):
    path = tmp_path / "old.json"
    save_profile(profile(layer(measurement(split=split()))), path)
    path.write_text(json.dumps(aged(json.loads(path.read_text()), 2)))
    assert load_profile(path) == profile(layer(measurement(split=split()), work=None))


def test_a_profile_from_before_i_and_w_is_read_and_says_so_when_they_are_needed(tmp_path):
    path = tmp_path / "old.json"
    rows = layer(measurement(split=split())), layer(measurement(split=split()))
    save_profile(profile(*rows), path)
    path.write_text(json.dumps(aged(json.loads(path.read_text()), 1)))
    layer_profile = load_profile(path)
    assert layer_profile == profile(layer(work=None), layer(work=None))
    costs = layer_profile.costs_of_layers([(0, 1), (1, 2)], 1)
    assert costs.seconds(backward(1, 0)) == 2.0
    with pytest.raises(ProfileError, match=r"got no seconds of I on stage 1 in the costs .*`input_share=0\.5`"):
        costs.seconds(backward_input(1, 0))


def test_a_profile_from_before_it_said_how_layers_are_computed_and_how_fast_the_machine_was_is_read(tmp_path):
    path = tmp_path / "p.json"
    plain = profile(layer(measurement(1)))
    shared = LayerExecution(tensor_parallel=4, sequence_parallel=True, selective_recompute=True)
    yardstick = Yardstick("cpu", 2, 0.25)
    said = replace(plain, provenance=replace(plain.provenance, execution=shared, yardstick=yardstick))
    save_profile(said, path)
    assert load_profile(path) == said
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(aged(fields, 7) | {"version": 5}))
    with pytest.raises(ProfileError, match=r"provenance: got an execution, expected none in version 5"):
        load_profile(path)
    path.write_text(json.dumps(aged(fields, 5)))
    assert load_profile(path) == plain


@pytest.mark.parametrize("file", sorted((ROOT / "profiles" / "data").glob("*.json")), ids=lambda path: path.stem)
def test_the_profiles_that_come_along_can_be_read_and_written_again(file, tmp_path):
    layer_profile = load_profile(file)
    save_profile(layer_profile, tmp_path / "again.json")
    assert load_profile(tmp_path / "again.json") == layer_profile


def edited(text, edit):
    fields = json.loads(text)
    edit(fields)
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: f.update(version=10), "version: got 10, expected 1, 2, 3, 4, 5, 6, 7, 8 or 9"),
        (lambda f: f.update(version=1), "layers.0.measurements.0: got a split, expected none in version 1"),
        (lambda f: f.update(version=2), "layers.0: got a work, expected none in version 2"),
        (lambda f: f["layers"][1].pop("work"), "layers.1: got no work, expected one, or null, in version 9"),
        (lambda f: f["provenance"].pop("kind"), "provenance: got no kind, expected one, or null, in version 9"),
        (lambda f: f["layers"][1]["work"].update(copy_s=-1), "layers.1.work.copy_s: got -1"),
        (lambda f: f["layers"][1]["measurements"][0].pop("split"), "layers.1.measurements.0: got no split"),
        (lambda f: f["layers"][1]["measurements"][0]["split"].pop("gradient_bytes"), "gradient_bytes: got nothing"),
        (lambda f: f.update(format="other"), "format: got 'other', expected 'pipesched-profile'"),
        (lambda f: f.pop("model"), "model: got nothing"),
        (lambda f: f.update(extra=1), "extra: got an unknown field"),
        (lambda f: f.update(layers=[]), "layers: got [], expected 1 or more entries; correct it"),
        (lambda f: f["layers"][0].update(step_s=-1), "layers.0.step_s: got -1"),
        (lambda f: f["layers"][0].update(step_s=math.nan), "layers.0.step_s: got nan"),
        (lambda f: f["layers"][0].update(step_s=math.inf), "layers.0.step_s"),
        (lambda f: f["layers"][0].update(step_s=1e300), "layers.0.step_s: got 1e+300, expected at most 1000000000000"),
        (lambda f: f["layers"][0].update(step_s="1"), "layers.0.step_s: got '1'"),
        (lambda f: f["layers"][0].update(weight_bytes=1.5), "layers.0.weight_bytes: got 1.5"),
        (lambda f: f["layers"][0].update(weight_bytes=10**30), "layers.0.weight_bytes"),
        (lambda f: f["layers"][0].update(weight_bytes=True), "layers.0.weight_bytes: got True"),
        (lambda f: f["layers"][0]["measurements"].reverse(), "got micro-batch sizes [4, 1], expected rising sizes"),
        (lambda f: f["layers"][1]["measurements"].pop(), "got micro-batch sizes [1], expected [1, 4] as in layer 0"),
        (lambda f: f["layers"][1]["measurements"][0].update(input_bytes=3), "got input_bytes 3"),
    ],
)
def test_a_fault_in_a_profile_is_told_with_file_and_place(tmp_path, edit, message):
    path = tmp_path / "p.json"
    sizes = measurement(1), measurement(4)
    save_profile(profile(layer(*sizes), layer(measurement(1, split=split()), measurement(4, split=split()))), path)
    path.write_text(edited(path.read_text(), edit))
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: f["devices"][0].update(speed=0), "devices.0.speed: got 0"),
        (lambda f: f["links"][0].update(target=2), "got a link from device 0 to 2, expected devices 0 to 1"),
        (lambda f: f["links"].append(f["links"][0]), "a second link from device 0 to 1"),
        (lambda f: f["intra"].update(bandwidth_bytes_per_s=0), "intra.bandwidth_bytes_per_s: got 0"),
        (lambda f: f["intra"].pop("bandwidth_bytes_per_s"), "intra.bandwidth_bytes_per_s: got nothing"),
        (lambda f: f.update(devices=[]), ": devices: got [], expected 1 or more entries; correct it, or measure"),
        (lambda f: f.update(devices=[{"node": -1}]), ": devices.0.node: got -1, expected at least 0; correct it"),
        (lambda f: f.update(devices={}), ": devices: got {}, expected a list; correct it"),
        (lambda f: f.update(origin="x" * 2001), "xxx..., expected 2000 or fewer characters; correct it"),
        (lambda f: f.update(inter=3), "inter: got 3"),
    ],
)
def test_a_fault_in_a_cluster_is_told_with_file_and_place(tmp_path, edit, message):
    path = tmp_path / "c.json"
    save_cluster(CLUSTER, path)
    path.write_text(edited(path.read_text(), edit))
    with pytest.raises(ProfileError) as caught:
        load_cluster(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "1e999", f'{{"version": {"9" * 5000}}}', "[" * 100_000, "\x00"])
@pytest.mark.parametrize("load", [load_profile, load_cluster])
def test_text_that_is_no_such_json_is_told_in_one_line(tmp_path, load, text):
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(ProfileError, match="expected") as caught:
        load(tmp_path / "f.json")
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 1000


def test_numbers_that_could_not_be_read_again_are_not_written(tmp_path):
    with pytest.raises(ProfileError, match="step_s"):
        save_profile(profile(layer(step_s=math.nan)), tmp_path / "p.json")
    with pytest.raises(ProfileError, match="latency_s"):
        save_cluster(Cluster((Device(),), Link(math.nan)), tmp_path / "c.json")
    assert not list(tmp_path.iterdir())
