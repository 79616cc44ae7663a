"""``pipesched partition``, and the options that say which machines."""

import json
import re
from pathlib import Path

import pytest

from pipesched.cli.options.machine_options import MachineOptions
from pipesched.profiles.clusters import Link
from pipesched.profiles.io import machine_names

PUBLISHED = Path(__file__).parents[2] / "profiles" / "data" / "pipedream"
VGG16, GNMT = PUBLISHED / "vgg16.graph.txt", PUBLISHED / "gnmt.graph.txt"
GPT = Path(__file__).parents[2] / "profiles" / "data" / "gpt-10m-epyc.json"
SLOW = "--link bandwidth_bytes_per_s=1e9"


def test_the_table_has_every_stage_and_what_to_do_next(pipesched):
    answer = pipesched(f"partition {VGG16} -p 4 {SLOW}")
    assert answer.code == 0
    assert "│     0 │   0-16 │     0-2 │" in answer.out
    assert "--schedule 1f1b_rr -p 4 --set replicas=3:1 --partition 17,23" in answer.out
    straight = " ".join(pipesched(f"partition {GNMT} -p 4 {SLOW}").out.split())
    assert "--schedule pipedream -p 4 --partition 4,20,14,7" in straight
    assert "interleaved -p 2 -v 3" in pipesched(f"partition {VGG16} -p 2 -v 3 --by time").out
    assert "1f1b -p 4 --partition 3,5,9,23" in pipesched(f"partition {VGG16} -p 4 --by time").out


def test_a_note_says_why_stages_have_several_devices_if_links_have_unlimited_bandwidth(pipesched, tmp_path):
    def notes(line):
        return json.loads(pipesched(f"partition {line} --json").out).get("notes", [])

    note = "unlimited bandwidth favours several devices per stage: give a --cluster with bandwidths"
    assert notes(f"{VGG16} -p 4") == notes(f"{VGG16} -p 4 --link latency_s=0.1") == [f"{note}, or try --by time"]
    assert notes(f"{VGG16} -p 64") == [note], "a stage has a layer at least"
    assert notes(f"{VGG16} -p 4 {SLOW}") == notes(f"{VGG16} -p 4 --by time") == []
    (tmp_path / "seconds.csv").write_text("f,b\n1,2\n1,2\n")
    others = notes(f"{tmp_path / 'seconds.csv'} -p 2")
    assert any(other.startswith("the profile has no bytes of messages") for other in others)
    assert not any(note in other for other in others)


def test_ranks_that_would_be_on_other_devices_than_planned_are_pointed_out(pipesched):
    """Fast links between nodes, slow ones inside: each stage has a device of each node."""
    nodes = "--nodes 2 --gpus 2 --intra bandwidth_bytes_per_s=1e9 --inter bandwidth_bytes_per_s=1e12"
    answer = pipesched(f"partition {VGG16} -p 4 {nodes}")
    assert "│    0, 2 │" in answer.out
    assert "the ranks of this schedule use the devices in order, not the devices of the table" in " ".join(
        answer.out.split()
    )
    assert "its ranks" not in pipesched(f"partition {VGG16} -p 4 {SLOW}").out


def test_the_bounds_in_a_file_are_those_that_partition_takes(pipesched, folder):
    pipesched(f"partition {VGG16} -p 4 {SLOW} --out bounds.txt")
    pipesched(f"partition {VGG16} -p 4 {SLOW} --out plan.json")
    bounds = (folder / "bounds.txt").read_text().strip()
    assert bounds == json.loads((folder / "plan.json").read_text())["partition"] == "17,23"
    run = f"-s 1f1b_rr -p 4 -m 12 --set replicas=3:1 --profile {VGG16} --partition {bounds} --json"
    assert json.loads(pipesched(f"simulate {run}").out)["makespan_s"] > 12 * 0.1714


def test_a_graph_that_is_cut_through_its_branches_is_written_with_its_stages(pipesched, folder):
    squeezenet = PUBLISHED / "squeezenet1_0.graph.txt"
    options = f"partition {squeezenet} -p 8 --form published {SLOW}"
    answer = " ".join(pipesched(f"{options} --out staged.graph.txt").out.split())
    assert "1f1b_rr -p 8 --set replicas=5:1:1:1 --profile staged.graph.txt" in answer
    assert (folder / "staged.graph.txt").read_text().count(" -- stage_id=") == 68
    assert "--profile F.graph.txt, which --out F.graph.txt writes" in " ".join(pipesched(options).out.split())
    plan = json.loads(pipesched(f"{options} --json").out)
    command = "simulate -s 1f1b_rr -p 8 -m 200 --set replicas=5:1:1:1 --profile staged.graph.txt --json"
    busy_s = [device["busy_s"] / 200 for device in json.loads(pipesched(command).out)["devices"]]
    assert max(busy_s) == pytest.approx(max(stage["compute_s"] for stage in plan["stages"]))
    assert "--partition" in pipesched(f"partition {squeezenet} -p 4 --by time").out


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (f"{VGG16} -p 4 --by memory --memory-limit 5GiB", r"devices of (?P<limit>\d+) bytes"),
        (f"{VGG16} -p 2 --by time -v 2 --memory-limit 12GiB", r"(?P<option>--chunks 1)"),
        (f"{GPT} -p 2 --by memory --microbatch-size 8 --memory-limit 140MB", r"(?P<option>--microbatch-size 2)"),
        (f"{GNMT} -p 4 --by memory --cluster mixed.json", r"(?P<option>--by time)"),
    ],
)
def test_what_is_advised_where_a_stage_does_not_fit_does_fit(pipesched, folder, options, advice):
    small, large = {"memory_bytes": 59 * 10**7}, {"memory_bytes": 10**10}
    free = {"latency_s": 0.0, "bandwidth_bytes_per_s": None}
    cluster = {"format": "pipesched-cluster", "version": 1, "devices": [large, large, large, small], "intra": free}
    (folder / "mixed.json").write_text(json.dumps(cluster))
    answer = pipesched(f"partition {options}")
    assert answer.code == 1
    match = re.search(f"; try {advice}$", answer.err.strip())
    assert match is not None, answer.err
    better = match["option"] if "option" in match.groupdict() else f"--memory-limit {match['limit']}"
    assert pipesched(f"partition {_with(options, better)}").code == 0


def _with(options, change):
    """Give the option of `change` in place of the same."""
    short = {"--chunks": "-v"}
    name = change.split()[0]
    return re.sub(rf" ({name}|{short.get(name, name)}) \S+", "", options) + f" {change}"


def test_the_simulated_times_of_the_choice_and_of_data_parallelism_stand_beside_the_bound(pipesched):
    """A ring of four sends 2 x 3 / 4 of 553.4 MB at 1 GB/s behind the work of all layers on one micro-batch."""
    answer = json.loads(pipesched(f"partition {VGG16} -p 4 {SLOW} --json").out)
    work_s = sum(stage["forward_s"] + stage["backward_s"] for stage in answer["stages"])
    weight_bytes = sum(stage["weight_bytes"] for stage in answer["stages"])
    assert answer["data_parallel_s"] == pytest.approx((work_s + 1.5 * weight_bytes / 1e9) / 4)
    run = f"simulate -s 1f1b_rr -p 4 -m 48 --set replicas=3:1 --profile {VGG16} --partition 17,23 {SLOW} --json"
    assert answer["simulated_s"] == pytest.approx(json.loads(pipesched(run).out)["steady_s_per_microbatch"], rel=1e-3)
    assert "which is faster" not in pipesched(f"partition {VGG16} -p 4 {SLOW}").out


def test_the_help_names_every_machine(pipesched):
    shown = pipesched("partition --help").out
    assert all(name in shown for name in machine_names())


def test_nodes_are_links_inside_and_between_and_shared_nics():
    options = MachineOptions(nodes=2, gpus=2, intra="latency_s=1", inter="bandwidth_bytes_per_s=5", nics=1)
    cluster = options.load(3, "a test")
    assert [device.node for device in cluster.devices] == [0, 0, 1, 1]
    assert (cluster.link(0, 1), cluster.link(1, 2)) == (Link(1.0), Link(0.0, 5.0))
    assert cluster.nics == ((0, 1), (2, 3))


def test_a_machine_is_a_node_whose_parts_can_be_changed():
    cluster = MachineOptions(nodes=2, machine="wpipe-v100", gpus=4, intra="latency_s=1").load(8, "a test")
    assert len(cluster.devices) == 8
    assert cluster.link(0, 1) == Link(1.0)
    assert cluster.link(3, 4) == Link(0.0, 3.125e9)
    assert cluster.nics == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert MachineOptions(nodes=1, machine="dgx-a100", memory_limit="1GB").load(1, "").devices[0].memory_bytes == 10**9
