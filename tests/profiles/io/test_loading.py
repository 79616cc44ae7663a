import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs import LayerSharding, SampleWork, SharingPrice, Variation
from pipesched.profiles.io import gpu_names, load_cluster, load_gpu, load_profile, machine_names, save_json
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


def test_how_seconds_vary_is_read_as_it_was_written(tmp_path):
    rising = tuple(1.0 + 0.01 * step for step in range(11))
    varied = replace(profile(layer(measurement(1))), variation=Variation(rising, (1.0,) * 11))
    save_json(varied, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == varied
    fields = json.loads((tmp_path / "p.json").read_text())
    fields["variation"]["passes"].reverse()
    (tmp_path / "p.json").write_text(json.dumps(fields))
    with pytest.raises(ProfileError, match=r"variation.passes: got .*, expected rising numbers"):
        load_profile(tmp_path / "p.json")


def test_what_sharing_a_core_costs_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "p.json"
    rising = tuple(1.0 + 0.01 * step for step in range(11))
    prices = SharingPrice(2, rising), SharingPrice(3, (1.5,) * 11)
    plain = profile(layer(measurement(1)))
    save_json(replace(plain, sharing=prices), path)
    assert load_profile(path) == replace(plain, sharing=prices)
    written = json.loads(path.read_text())
    for edit, message in (
        (lambda f: f["sharing"].reverse(), r"sharing: got numbers of processes \[3, 2\], expected rising numbers"),
        (lambda f: f["sharing"][0]["factors"].reverse(), r"sharing.0.factors: got .*, expected rising numbers"),
        (lambda f: f["sharing"][0].update(num_processes=1), r"sharing.0.num_processes: got 1, expected at least 2"),
    ):
        path.write_text(edited(json.dumps(written), edit))
        with pytest.raises(ProfileError, match=message):
            load_profile(path)


def test_a_cluster_is_read_as_it_was_written(tmp_path):
    save_json(CLUSTER, tmp_path / "c.json")
    assert load_cluster(tmp_path / "c.json") == CLUSTER
    assert json.loads((tmp_path / "c.json").read_text())["inter"]["bandwidth_bytes_per_s"] is None


def test_a_cluster_written_by_hand_may_leave_out_what_is_usual(tmp_path):
    text = '{"format": "pipesched-cluster", "version": 1, "devices": [{}, {"speed": 2}], "intra": '
    (tmp_path / "c.json").write_text(text + '{"latency_s": 0, "bandwidth_bytes_per_s": null}}')
    assert load_cluster(tmp_path / "c.json") == Cluster((Device(), Device(2.0)))


def test_a_profile_without_i_and_w_is_read_and_says_so_when_they_are_needed(tmp_path):
    path = tmp_path / "p.json"
    rows = layer(measurement(split=split())), layer(measurement(split=split()))
    save_json(profile(*rows), path)
    path.write_text(edited(path.read_text(), lambda f: [row["measurements"][0].pop("split") for row in f["layers"]]))
    layer_profile = load_profile(path)
    assert layer_profile == profile(layer(), layer())
    costs = layer_profile.costs_of_layers([(0, 1), (1, 2)], 1)
    assert costs.seconds(backward(1, 0)) == 2.0
    with pytest.raises(ProfileError, match=r"got no seconds of I on stage 1 in the costs .*`input_share=0\.5`"):
        costs.seconds(backward_input(1, 0))


def test_the_split_of_layers_the_work_of_a_sample_and_the_speed_of_the_machine_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "p.json"
    plain = profile(layer(measurement(1)))
    shared = LayerSharding(tensor=4, has_sequence=True, recompute="selective")
    work = SampleWork(tokens=2048, flops=1e15, peak_flops_per_s=1e15)
    provenance = replace(plain.provenance, sharding=shared, yardstick=Yardstick("cpu", 2, 0.25))
    said = replace(plain, provenance=provenance, sample_work=work)
    save_json(said, path)
    assert load_profile(path) == said
    for edit, message in (
        (lambda f: f["provenance"]["sharding"].update(tensor=0), "sharding: tensor: got 0, expected at least 1"),
        (lambda f: f["provenance"]["sharding"].update(tensor="8"), "provenance.sharding.tensor: got '8', expected an"),
        (lambda f: f["provenance"]["sharding"].update(zero=4), "sharding: zero: got 4, expected at most 3"),
        (
            lambda f: f["provenance"]["sharding"].update(recompute="all"),
            "sharding.recompute: got 'all', expected ",
        ),
        (lambda f: f["provenance"]["sharding"].update(pipeline=2), "sharding.pipeline: got an unknown field"),
        (lambda f: f["sample_work"].update(flops=0), "sample_work.flops: got 0"),
    ):
        broken = tmp_path / "broken.json"
        broken.write_text(edited(path.read_text(), edit))
        with pytest.raises(ProfileError, match=re.escape(message)):
            load_profile(broken)


@pytest.mark.parametrize("name", gpu_names())
def test_a_gpu_of_the_table_has_a_source_and_figures_of_the_right_size(name):
    gpu = load_gpu(name)
    assert gpu.name == name
    assert "nvidia" in gpu.origin or "amd.com" in gpu.origin
    assert "of the peak" in gpu.origin
    assert "memory as a program sees it" in gpu.origin
    assert 16e9 <= gpu.memory_bytes < 320e9
    assert gpu.memory_bytes % 2**20 == 0
    assert 300e9 <= gpu.memory_bandwidth_bytes_per_s <= 8e12
    assert 1e13 < gpu.flops_per_s["float32"] < gpu.flops_per_s["float16"] < 1e16
    assert 32e9 <= gpu.link_bandwidth_bytes_per_s <= 900e9
    assert 0.5 < gpu.efficiency <= 0.9
    assert gpu.multiprocessors is not None
    assert gpu.kernels is not None
    assert gpu.machine is None or gpu.machine in machine_names()


@pytest.mark.parametrize("name", [name for name in gpu_names() if "float8" in load_gpu(name).flops_per_s])
def test_float8_has_twice_the_peak_and_a_smaller_share_of_it(name):
    gpu = load_gpu(name)
    assert gpu.flops_per_s["float8"] == pytest.approx(2 * gpu.flops_per_s["bfloat16"], rel=0.02)
    assert gpu.float8_efficiency is not None
    assert gpu.float8_efficiency <= gpu.efficiency


@pytest.mark.parametrize("file", sorted((ROOT / "profiles" / "data").glob("*.json")), ids=lambda path: path.stem)
def test_the_profiles_that_come_along_can_be_read_and_written_again(file, tmp_path):
    layer_profile = load_profile(file)
    save_json(layer_profile, tmp_path / "again.json")
    assert load_profile(tmp_path / "again.json") == layer_profile


def edited(text, edit):
    fields = json.loads(text)
    edit(fields)
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: f.update(version=9), "version: got 9, expected 10; correct it, or measure the profile again"),
        (lambda f: f["layers"][1]["work"].update(copy_s=-1), "layers.1.work.copy_s: got -1"),
        (lambda f: f["layers"][1]["measurements"][0]["split"].pop("gradient_bytes"), "gradient_bytes: got nothing"),
        (lambda f: f.update(format="other"), "format: got 'other', expected 'pipesched-profile'"),
        (lambda f: f.pop("model"), "model: got nothing"),
        (lambda f: f.update(extra=1), "extra: got an unknown field"),
        (lambda f: f.update(layers=[]), "layers: got [], expected 1 or more entries; correct it"),
        (lambda f: f["layers"][0].update(step_s=-1), "layers.0.step_s: got -1"),
        (lambda f: f["layers"][0].update(step_s=math.nan), "layers.0.step_s: got nan"),
        (lambda f: f["layers"][0].update(step_s=1e300), "layers.0.step_s: got 1e+300, expected at most 1000000000000"),
        (lambda f: f["layers"][0].update(weight_bytes=1.5), "layers.0.weight_bytes: got 1.5"),
        (lambda f: f["layers"][0].update(weight_bytes=True), "layers.0.weight_bytes: got True"),
        (lambda f: f["layers"][0]["measurements"].reverse(), "got micro-batch sizes [4, 1], expected rising numbers"),
        (lambda f: f["layers"][1]["measurements"].pop(), "got micro-batch sizes [1], expected [1, 4] as in layer 0"),
        (lambda f: f["layers"][1]["measurements"][0].update(input_bytes=3), "got input_bytes 3"),
    ],
)
def test_a_fault_in_a_profile_is_told_with_file_and_place(tmp_path, edit, message):
    path = tmp_path / "p.json"
    sizes = measurement(1), measurement(4)
    save_json(profile(layer(*sizes), layer(measurement(1, split=split()), measurement(4, split=split()))), path)
    path.write_text(edited(path.read_text(), edit))
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


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
        (lambda f: f.update(origin="x" * 2001), "xxx..., expected 2000 or fewer characters; correct it"),
    ],
)
def test_a_fault_in_a_cluster_is_told_with_file_and_place(tmp_path, edit, message):
    path = tmp_path / "c.json"
    save_json(CLUSTER, path)
    path.write_text(edited(path.read_text(), edit))
    with pytest.raises(ProfileError) as caught:
        load_cluster(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "1e999"])
@pytest.mark.parametrize("load", [load_profile, load_cluster])
def test_text_that_is_no_such_json_is_told_in_one_line(tmp_path, load, text):
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(ProfileError, match="expected") as caught:
        load(tmp_path / "f.json")
    assert len(str(caught.value)) < 1000


def test_numbers_that_could_not_be_read_again_are_not_written(tmp_path):
    with pytest.raises(ProfileError, match="step_s"):
        save_json(profile(layer(step_s=math.nan)), tmp_path / "p.json")
    with pytest.raises(ProfileError, match="latency_s"):
        save_json(Cluster((Device(),), Link(math.nan)), tmp_path / "c.json")
    assert not list(tmp_path.iterdir())
