import json
import math
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
    (Device(op_s=2e-5), Device(0.5, 10**9, 1)),
    intra=Link(1e-5, 1e9, send_s=1e-4, send_s_per_byte=1e-10, post_s=5e-5, receive_s=6e-5, receive_s_per_byte=2e-10),
    inter=Link(1e-4),
    links=((0, 1, Link(2e-5, 3e9)),),
    nics=((0,), (1,)),
    origin="by hand",
)


RISING = tuple(1.0 + 0.01 * step for step in range(11))
PLAIN = profile(
    layer(measurement(1), measurement(4)),
    layer(measurement(1, split=split()), measurement(4, split=split())),
)
FULL = replace(
    PLAIN,
    variation=Variation(RISING, (1.0,) * 11),
    sharing=(SharingPrice(2, RISING), SharingPrice(3, (1.5,) * 11)),
    provenance=replace(
        PLAIN.provenance,
        sharding=LayerSharding(tensor=4, has_sequence=True, recompute="selective"),
        yardstick=Yardstick("cpu", 2, 0.25),
    ),
    sample_work=SampleWork(tokens=2048, flops=1e15, peak_flops_per_s=1e15),
)
"""A profile with everything that a profile may say."""


@pytest.mark.parametrize("before", [PLAIN, FULL], ids=["plain", "full"])
def test_a_profile_is_read_as_it_was_written(tmp_path, before):
    save_json(before, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.json"]


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
        (lambda f: f["layers"][0].update(step_s="1"), "layers.0.step_s: got '1'"),
        (lambda f: f["layers"][0].update(step_s=1e300), "layers.0.step_s: got 1e+300, expected at most 1000000000000"),
        (lambda f: f["layers"][0].update(weight_bytes=1.5), "layers.0.weight_bytes: got 1.5"),
        (lambda f: f["layers"][0].update(weight_bytes=True), "layers.0.weight_bytes: got True"),
        (lambda f: f["layers"][0]["measurements"].reverse(), "got micro-batch sizes [4, 1], expected rising numbers"),
        (lambda f: f["layers"][1]["measurements"].pop(), "got micro-batch sizes [1], expected [1, 4] as in layer 0"),
        (lambda f: f["layers"][1]["measurements"][0].update(input_bytes=3), "got input_bytes 3"),
        (lambda f: f["variation"]["passes"].reverse(), "variation.passes: got "),
        (lambda f: f["sharing"].reverse(), "sharing: got numbers of processes [3, 2], expected rising numbers"),
        (lambda f: f["sharing"][0]["factors"].reverse(), "sharing.0.factors: got "),
        (lambda f: f["sharing"][0].update(num_processes=1), "sharing.0.num_processes: got 1, expected at least 2"),
        (lambda f: f["provenance"]["sharding"].update(tensor=0), "sharding: tensor: got 0, expected at least 1"),
        (lambda f: f["provenance"]["sharding"].update(tensor="8"), "provenance.sharding.tensor: got '8', expected an"),
        (lambda f: f["provenance"]["sharding"].update(recompute="all"), "sharding.recompute: got 'all', expected "),
        (lambda f: f["provenance"]["sharding"].update(pipeline=2), "sharding.pipeline: got an unknown field"),
        (lambda f: f["sample_work"].update(flops=0), "sample_work.flops: got 0"),
    ],
)
def test_a_fault_in_a_profile_is_told_with_file_and_place(tmp_path, edit, message):
    path = tmp_path / "p.json"
    save_json(FULL, path)
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
        (lambda f: f.update(nics=[[0, 9]]), "nics.0: got devices [0, 9], expected devices from 0 to 1"),
        (lambda f: f.update(nics=[[]]), "nics.0: got devices []"),
        (lambda f: f.update(nics=[[0, 1]]), "nics.0: got devices of several nodes"),
        (lambda f: f.update(nics=[[0], [0]]), "nics.1: got a device twice"),
        (lambda f: f.update(nics=[[1, 1]]), "nics.0: got a device twice"),
        (lambda f: f.update(nics=[[-1]]), "nics.0.0: got -1"),
        (lambda f: f["intra"].update(post_s=-1), "intra.post_s: got -1"),
        (lambda f: f["intra"].update(bandwidth_bytes_per_s=0), "intra.bandwidth_bytes_per_s: got 0"),
        (lambda f: f["intra"].pop("bandwidth_bytes_per_s"), "intra.bandwidth_bytes_per_s: got nothing"),
        (lambda f: f.update(devices=[]), ": devices: got [], expected 1 or more entries; correct it, or measure"),
        (lambda f: f.update(devices=[{"node": -1}]), ": devices.0.node: got -1, expected at least 0; correct it"),
        (lambda f: f.update(devices={}), ": devices: got {}, expected a list; correct it"),
        (lambda f: f.update(inter=3), "inter: got 3"),
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
