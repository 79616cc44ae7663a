"""`--profile MODEL --gpu`: commands that estimate the costs of a model first, and the rates that they print."""

import re

import pytest

from pipesched.profiles.io import load_gpu, model_shape
from pipesched.workflows import estimate_data, notes_of_estimate
from pipesched.workflows.optimizing.optimum_result import WITHOUT_TIED_SUM
from tests.cli.json_answers import data

ESTIMATE = "--profile llama3-8b --gpu h100 --tp 8 --sp --dp 2 --zero 1"
COUNTS = "-s 1f1b -p 4 -m 8"


def words(answer):
    assert (answer.code, answer.err) == (0, "")
    return " ".join(answer.out.split())


def test_a_model_is_estimated_and_its_rates_are_printed(pipesched):
    text = words(pipesched(f"simulate {COUNTS} {ESTIMATE}"))
    assert "estimated: " in text
    assert "per iteration of 16 samples of 8192 tokens on 64 GPUs; per GPU" in text
    assert "a device is 16 GPUs that share its layers: 4 devices are 64 GPUs" in text
    assert "memory limit 79.18 GiB of every device" in text


def test_the_rates_follow_from_the_makespan(pipesched):
    answer = data(pipesched, f"simulate {COUNTS} {ESTIMATE}")
    rates, shape = answer["rates"], model_shape("llama3-8b")
    assert (rates["num_samples"], rates["num_gpus"], rates["seconds"]) == (16, 64, answer["makespan_s"])
    assert rates["tokens_per_s"] == pytest.approx(16 * shape.sequence / answer["makespan_s"] / 64)
    flops_per_s = shape.flops_per_token() * rates["tokens_per_s"]
    assert rates["flops_per_s"] == pytest.approx(flops_per_s)
    assert rates["utilization"] == pytest.approx(flops_per_s / load_gpu("h100").flops_per_s["bfloat16"])


def test_a_comparison_and_a_sweep_have_the_rates_of_each_setting(pipesched):
    compared = data(pipesched, f"compare 1f1b,gpipe -p 4 -m 8 {ESTIMATE}")["schedules"]
    simulated = data(pipesched, f"simulate {COUNTS} {ESTIMATE}")["rates"]
    assert compared[0]["utilization"] == simulated["utilization"]
    assert "MFU" in words(pipesched(f"compare 1f1b,gpipe -p 4 -m 8 {ESTIMATE}"))
    line = f"sweep -s 1f1b -p 4 -m 8 --microbatch-sizes 1,4 {ESTIMATE}"
    assert "MFU" in words(pipesched(line))
    settings = {row["microbatch_size"]: row for row in data(pipesched, f"{line}")["settings"]}
    assert settings[1]["utilization"] == simulated["utilization"]
    assert 0 < settings[4]["utilization"] < 1
    assert {"tokens_per_s", "flops_per_s"} < settings[4].keys()


@pytest.mark.parametrize(
    "command",
    [
        f"simulate {COUNTS} {ESTIMATE}",
        f"compare 1f1b,gpipe -p 4 -m 8 {ESTIMATE}",
        f"sweep {COUNTS} {ESTIMATE}",
        "plan llama3-8b -b 8 --nodes 1 --machine dgx-h100 --tp 8 --zero 1 --depth 1",
        "plan p.json -b 8 --machine dgx-h100 --nodes 1 --gpus 2 --depth 2 -s 1f1b --recompute no",
    ],
)
def test_each_output_has_the_errors_of_the_estimates_of_the_gpu(pipesched, folder, command):
    pipesched("profile llama3-8b --gpu h100 --tp 2 --sp --microbatch-sizes 1,2,4,8 --out p.json")
    note = notes_of_estimate("H100", 1.0)[0]
    assert note in words(pipesched(command))
    answer = data(pipesched, f"{command}")
    assert note in answer["notes"]
    assert answer["estimate_errors"] == estimate_data("H100")


def test_a_known_run_gives_a_factor_that_other_commands_take(pipesched, folder):
    text = words(pipesched(f"simulate {COUNTS} {ESTIMATE} --fit-iteration 900ms"))
    factor = re.search(r"factor (\S+) from one known run of 900 ms, estimated at", text)[1]
    answer = data(pipesched, f"simulate {COUNTS} {ESTIMATE} --fit-iteration 0.9")
    assert answer["fit"]["factor"] == pytest.approx(float(factor), rel=1e-4)
    assert f"for other settings use --fit-factor {factor}" in text
    fitted = f"{ESTIMATE} --fit-factor {factor}"
    (compared,) = data(pipesched, f"compare 1f1b -p 4 -m 8 {fitted}")["schedules"]
    (swept,) = data(pipesched, f"sweep {COUNTS} {fitted}")["settings"]
    assert (compared["makespan_s"], swept["makespan_s"]) == pytest.approx((0.9, 0.9), rel=1e-4)
    note = "fitted: layers take 2 times their estimated seconds; published runs were compared without this factor"
    plan = "plan llama3-8b -b 8 --nodes 1 --machine dgx-h100 --tp 8 --zero 1 --depth 1"
    for line in (plan, "profile llama3-8b --gpu h100 --microbatch-sizes 1 --out p.json"):
        assert note in words(pipesched(f"{line} --fit-factor 2"))
    assert note in words(pipesched("tune p.json -b 2 -p 2 -s 1f1b -m 2 -n 1"))


def test_other_costs_have_no_rates(pipesched):
    assert data(pipesched, f"simulate {COUNTS} --uniform f=1,b=2")["rates"] is None
    swept = data(pipesched, f"sweep {COUNTS} --uniform f=1,b=2")
    assert "utilization" not in swept["settings"][0]


def test_the_machine_of_the_devices_follows_from_the_gpu(pipesched):
    def simulated(options):
        answer = data(pipesched, f"simulate {COUNTS} --profile llama3-8b --gpu h100 {options}")
        return answer["makespan_s"], answer["fits"]

    plain = simulated("--tp 2")
    assert plain == simulated("--tp 2 --machine dgx-h100") == simulated("--tp 2 --machine dgx-h100 --nodes 1")
    assert simulated("--tp 2 --gpus 1 --machine dgx-h100")[0] > plain[0]


def test_an_order_of_tied_embeddings_is_sought_without_their_sum(pipesched, folder):
    costs = "--profile llama3-8b:layers=16,tied=yes --gpu h100 --tp 4 --sp --partition uniform"
    best = data(pipesched, f"optimize -s 1f1b -p 2 -m 4 {costs} --seconds 0 --out best.json")
    assert WITHOUT_TIED_SUM in best["notes"]
    again, known = (
        data(pipesched, f"simulate {schedule} {costs}")["makespan_s"]
        for schedule in ("-f best.json", "-s 1f1b -p 2 -m 4")
    )
    assert best["bound_s"] <= best["makespan_s"] < again <= known
    untied = data(pipesched, f"optimize {COUNTS} {ESTIMATE} --seconds 0")
    assert WITHOUT_TIED_SUM not in untied["notes"]
