"""What a user may give for a schedule, its costs and the machines."""

import re
from pathlib import Path

import pytest
from torch import nn

import pipesched
from pipesched.profiles.clusters import flat
from pipesched.profiles.costs import DeviceCost, uniform
from pipesched.profiles.io import load_profile, save_json
from pipesched.questions import ScheduleCounts
from pipesched.schedules.builders import build, build_generated
from pipesched.schedules.formats import to_json, write_text
from pipesched.workflows import ArgumentError
from pipesched.workflows.arguments import (
    ScheduleSource,
    read_cluster_argument,
    read_model_argument,
    read_schedule_argument,
)
from pipesched.workflows.simulating import Setup

GPT = str(Path(__file__).parents[3] / "profiles" / "data" / "gpt-10m-epyc.json")


def costs_of(costs, schedule, **cut):
    return Setup(costs, **cut).costs_of(ScheduleSource(schedule))


def test_a_schedule_by_name_object_generator_and_file_is_the_same(tmp_path):
    expected = build("1f1b", 2, 4)
    files = tmp_path / "lists.json", tmp_path / "LISTS.JSON"
    for file in files:
        write_text(file, to_json(expected))

    for given in (expected, build_generated("1f1b", 2, 4), *files, *map(str, files)):
        assert read_schedule_argument(given).schedule.ops == expected.ops
    assert read_schedule_argument("Schedule1F1B", ScheduleCounts(num_ranks=2, num_microbatches=4)).schedule == expected


def test_a_run_without_a_flush_by_name_can_be_made_longer():
    source = read_schedule_argument("pipedream", ScheduleCounts(num_ranks=2, num_microbatches=4))

    assert source.longer is not None
    assert source.longer(3) == build("pipedream", 2, 12)
    assert read_schedule_argument("1f1b", ScheduleCounts(num_ranks=2, num_microbatches=4)).longer is None


def test_parameters_and_chunks_go_to_the_builder():
    counts = ScheduleCounts(num_ranks=2, num_microbatches=4, parameters={"pipelines": 2, "advance": 1})
    source = read_schedule_argument("avgpipe", counts)
    assert source.schedule == build("avgpipe", 2, 4, pipelines=2, advance=1)
    source = read_schedule_argument("interleaved", ScheduleCounts(num_ranks=2, num_microbatches=4, num_chunks=3))
    assert source.schedule.num_stages == 6


def test_errors_name_the_argument():
    with pytest.raises(ArgumentError, match=r"^num_microbatches: got none with schedule 1f1b"):
        read_schedule_argument("1f1b", ScheduleCounts(num_ranks=4))
    with pytest.raises(ArgumentError, match=r"^num_ranks: got 4 with a schedule that already has its counts"):
        read_schedule_argument(build("1f1b", 2, 4), ScheduleCounts(num_ranks=4))
    with pytest.raises(
        ArgumentError, match=r"^partition: got 1,1, expected a partition only with costs of layers or a profile"
    ):
        costs_of(uniform(2, 1.0, 2.0), build("1f1b", 2, 4), partition="1,1")
    with pytest.raises(ArgumentError, match=r"^costs \(uniform\): got 3 stages, expected 2 for schedule 1f1b"):
        costs_of(uniform(3, 1.0, 2.0), build("1f1b", 2, 4))
    with pytest.raises(ArgumentError, match=r"^cluster: devices: got 2, expected 4 for schedule 1f1b"):
        read_cluster_argument(flat(2), 4, "schedule 1f1b")


def test_a_device_shares_its_cost_among_its_stages():
    device = DeviceCost(forward_s=2.0, backward_s=4.0, saved_bytes=100, output_bytes=10, overlap=0.5)
    costs = costs_of(device, build("interleaved", 2, 4, 2))

    assert costs.num_stages == 4
    assert (costs.stages[0].forward_s, costs.stages[0].backward_s, costs.stages[0].saved_bytes) == (1.0, 2.0, 50)
    assert (costs.stages[0].output_bytes, costs.overlap) == (10, 0.5)


def test_a_profile_is_the_same_as_its_file():
    schedule = build("1f1b", 2, 4)
    by_path = costs_of(GPT, schedule, partition="uniform", microbatch_size=2)

    assert by_path == costs_of(load_profile(GPT), schedule, partition="uniform", microbatch_size=2)
    assert by_path != costs_of(GPT, schedule)


def test_a_partition_may_be_a_list_of_layers_per_stage():
    num_layers = len(load_profile(GPT).layers)
    layers, text = [3, num_layers - 3], f"3,{num_layers - 3}"
    for given in (layers, tuple(layers)):
        cut = costs_of(GPT, build("1f1b", 2, 2), partition=given)
        assert cut == costs_of(GPT, build("1f1b", 2, 2), partition=text)
    tuned = pipesched.tune(Setup(GPT, partition=layers), batch_size=8, num_devices=2, microbatches=4, pipelines=1)
    assert tuned.problem.partition == text


def test_a_cluster_is_the_same_as_its_file_and_none_has_free_links(tmp_path):
    save_json(flat(3), tmp_path / "machines.json")

    assert len(read_cluster_argument(tmp_path / "machines.json", 2, "it").devices) == 3
    assert read_cluster_argument(None, 2, "it") == flat(2)
    with pytest.raises(ArgumentError, match=re.escape(f"{tmp_path / 'machines.json'}: devices: got 3, expected 4")):
        read_cluster_argument(tmp_path / "machines.json", 4, "it")


def test_a_module_as_a_model_is_refused_in_one_line():
    for module in (nn.Sequential(nn.Linear(2, 2)), nn.Linear):
        with pytest.raises(
            ArgumentError, match=r"^model: got \w+\(\.\.\), expected a Model, a name, .* top of a module$"
        ):
            read_model_argument(module)
