"""`--profile MODEL --gpu`: commands that estimate the costs of a model first, and the rates that they print."""

import json
import re

import pytest

from pipesched.profiles.io import load_gpu, load_profile, model_shape
from pipesched.workflows import estimate_data, notes_of_estimate
from pipesched.workflows.optimizing.optimum_result import WITHOUT_TIED_SUM

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
    answer = json.loads(pipesched(f"simulate {COUNTS} {ESTIMATE} --json").out)
    rates, shape = answer["rates"], model_shape("llama3-8b")
    assert (rates["num_samples"], rates["num_gpus"], rates["seconds"]) == (16, 64, answer["makespan_s"])
    assert rates["tokens_per_s"] == pytest.approx(16 * shape.sequence / answer["makespan_s"] / 64)
    flops_per_s = shape.flops_per_token() * rates["tokens_per_s"]
    assert rates["flops_per_s"] == pytest.approx(flops_per_s)
    assert rates["utilization"] == pytest.approx(flops_per_s / load_gpu("h100").flops_per_s["bfloat16"])


def test_an_estimated_file_gives_the_same_prediction_as_its_model(pipesched, folder):
    pipesched("profile llama3-8b --gpu h100 --tp 8 --sp --dp 2 --zero 1 --microbatch-sizes 1 --out p.json")
    machine = "--machine dgx-h100"
    by_file = json.loads(pipesched(f"simulate {COUNTS} --profile p.json {machine} --json").out)
    by_name = json.loads(pipesched(f"simulate {COUNTS} {ESTIMATE} {machine} --json").out)
    assert by_file == by_name
    assert load_profile(folder / "p.json").sample_work == model_shape("llama3-8b").sample_work(989e12)


def test_a_comparison_and_a_sweep_have_the_rates_of_each_setting(pipesched):
    compared = json.loads(pipesched(f"compare 1f1b,gpipe -p 4 -m 8 {ESTIMATE} --json").out)["schedules"]
    simulated = json.loads(pipesched(f"simulate {COUNTS} {ESTIMATE} --json").out)["rates"]
    assert compared[0]["utilization"] == simulated["utilization"]
    assert "MFU" in words(pipesched(f"compare 1f1b,gpipe -p 4 -m 8 {ESTIMATE}"))
    line = f"sweep -s 1f1b -p 4 -m 8 --microbatch-sizes 1,4 {ESTIMATE}"
    assert "MFU" in words(pipesched(line))
    settings = {row["microbatch_size"]: row for row in json.loads(pipesched(f"{line} --json").out)["settings"]}
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
    answer = json.loads(pipesched(f"{command} --json").out)
    assert note in answer["notes"]
    assert answer["estimate_errors"] == estimate_data("H100")


def test_a_tuned_setting_and_a_profile_have_the_errors_of_the_estimates(pipesched, folder):
    note, machines = notes_of_estimate("H100", 1.0)[0], "--machine dgx-h100 --nodes 1 --gpus 2 --memory-limit 200GiB"
    assert note in words(pipesched("profile llama3-8b --gpu h100 --microbatch-sizes 1,2,4,8 --out p.json"))
    assert note in words(pipesched(f"tune p.json -b 8 -s 1f1b {machines}"))


def test_a_page_has_the_errors_of_the_estimates(pipesched, folder):
    for command in (f"simulate {COUNTS}", "compare 1f1b,gpipe -p 4 -m 8", f"sweep {COUNTS}"):
        pipesched(f"{command} {ESTIMATE} --out page.html")
        assert notes_of_estimate("H100", 1.0)[0] in (folder / "page.html").read_text()


def test_a_gpu_without_published_runs_says_so(pipesched):
    command = f"simulate {COUNTS} {ESTIMATE.replace('h100', 'mi300x')}"
    assert "estimated: no published run of this GPU was compared" in words(pipesched(command))
    assert json.loads(pipesched(f"{command} --json").out)["estimate_errors"] is None


def test_a_known_run_gives_a_factor_that_other_commands_take(pipesched, folder):
    text = words(pipesched(f"simulate {COUNTS} {ESTIMATE} --fit-iteration 900ms"))
    factor = re.search(r"factor (\S+) from one known run of 900 ms, estimated at", text)[1]
    assert f"other settings take it as --fit-factor {factor}" in text
    answer = json.loads(pipesched(f"simulate {COUNTS} {ESTIMATE} --fit-iteration 0.9 --json").out)
    assert answer["makespan_s"] == pytest.approx(0.9, rel=1e-9)
    assert answer["fit"]["factor"] == pytest.approx(float(factor), rel=1e-4)
    fitted = f"{ESTIMATE} --fit-factor {factor}"
    assert "fitted: layers take" in words(pipesched(f"simulate {COUNTS} {fitted}"))
    (compared,) = json.loads(pipesched(f"compare 1f1b -p 4 -m 8 {fitted} --json").out)["schedules"]
    assert compared["makespan_s"] == pytest.approx(0.9, rel=1e-4)
    (swept,) = json.loads(pipesched(f"sweep {COUNTS} {fitted} --json").out)["settings"]
    assert swept["makespan_s"] == pytest.approx(0.9, rel=1e-4)
    note = "fitted: layers take 2 times their estimated seconds; published runs were compared without it"
    plan = "plan llama3-8b -b 8 --nodes 1 --machine dgx-h100 --tp 8 --zero 1 --depth 1"
    assert note in words(pipesched(f"{plan} --fit-factor 2"))
    assert note in words(pipesched("profile llama3-8b --gpu h100 --microbatch-sizes 1 --fit-factor 2 --out p.json"))
    assert note in words(pipesched(f"simulate {COUNTS} --profile p.json"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"simulate {COUNTS} {ESTIMATE} --fit-iteration 0", "--fit-iteration: got 0 s, expected "),
        (f"simulate {COUNTS} {ESTIMATE} --fit-iteration 1us", "--fit-iteration: got 1 us, expected "),
        (f"simulate {COUNTS} {ESTIMATE} --fit-iteration -1s", "--fit-iteration: got -1 s, expected "),
        (f"simulate {COUNTS} {ESTIMATE} --fit-iteration 9 --fit-factor 2", "--fit-iteration: got --fit-factor too"),
        (f"simulate {COUNTS} --uniform f=1,b=2 --fit-iteration 9", "--fit-iteration: got costs that are no estimate"),
        (f"simulate {COUNTS} {ESTIMATE} --jitter 0.1 --fit-iteration 9", "--fit-iteration: got --jitter too"),
        (
            "profile llama3-8b --gpu h200 --microbatch-size 1",
            "--microbatch-size: got it without --from, expected both",
        ),
        ("profile llama3-8b --tp 2", "--tensor-parallel: got it without --gpu, expected both; leave it out"),
        (f"sweep {COUNTS} {ESTIMATE} --fit-factor 0", "'--fit-factor': got '0', expected at least 0.01"),
    ],
)
def test_options_that_contradict_an_estimate_are_refused_in_one_line(pipesched, line, message):
    answer = pipesched(line)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_other_costs_have_no_rates(pipesched):
    assert json.loads(pipesched(f"simulate {COUNTS} --uniform f=1,b=2 --json").out)["rates"] is None
    swept = json.loads(pipesched(f"sweep {COUNTS} --uniform f=1,b=2 --json").out)
    assert "utilization" not in swept["settings"][0]


def test_the_machine_of_the_devices_follows_from_the_gpu(pipesched):
    def answer(options):
        data = json.loads(pipesched(f"simulate {COUNTS} --profile llama3-8b --gpu h100 {options} --json").out)
        return data["makespan_s"], data["fits"]

    assert answer("--tp 2") == answer("--tp 2 --machine dgx-h100") == answer("--tp 2 --machine dgx-h100 --nodes 1")
    assert answer("--tp 2 --gpus 1 --machine dgx-h100")[0] > answer("--tp 2")[0]


def test_the_granularity_of_recomputation_is_not_that_of_stages(pipesched):
    full = json.loads(pipesched(f"simulate {COUNTS} {ESTIMATE} --recompute-granularity full --json").out)
    plain = json.loads(pipesched(f"simulate {COUNTS} {ESTIMATE} --json").out)
    stages = json.loads(pipesched(f"simulate {COUNTS} {ESTIMATE} --recompute all --json").out)
    assert plain["makespan_s"] < full["makespan_s"]
    assert plain["makespan_s"] < stages["makespan_s"]
    assert full["makespan_s"] != stages["makespan_s"]


def test_a_chart_a_trace_and_an_optimum_have_the_costs_of_the_estimate(pipesched):
    simulated = json.loads(pipesched(f"simulate {COUNTS} {ESTIMATE} --json").out)
    (drawn,) = json.loads(pipesched(f"gantt {COUNTS} {ESTIMATE} --json").out)["timelines"]
    assert max(span[4] for span in drawn["spans"]) == simulated["makespan_s"]
    assert json.loads(pipesched(f"trace {COUNTS} {ESTIMATE}").out)["traceEvents"]
    best = json.loads(pipesched(f"optimize {COUNTS} {ESTIMATE} --seconds 0 --json").out)
    assert best["bound_s"] <= best["makespan_s"] <= simulated["makespan_s"]


def test_an_order_of_tied_embeddings_is_sought_without_their_sum(pipesched, folder):
    costs = "--profile llama3-8b:layers=16,tied=yes --gpu h100 --tp 4 --sp --partition uniform"
    best = json.loads(pipesched(f"optimize -s 1f1b -p 2 -m 4 {costs} --seconds 0 --out best.json --json").out)
    assert WITHOUT_TIED_SUM in best["notes"]
    again, known = (
        json.loads(pipesched(f"simulate {schedule} {costs} --json").out)["makespan_s"]
        for schedule in ("-f best.json", "-s 1f1b -p 2 -m 4")
    )
    assert best["bound_s"] <= best["makespan_s"] < again <= known
    untied = json.loads(pipesched(f"optimize {COUNTS} {ESTIMATE} --seconds 0 --json").out)
    assert WITHOUT_TIED_SUM not in untied["notes"]


def test_the_gradients_of_an_estimate_are_always_held_under_their_kind(pipesched):
    """Of each parameter 2 bytes of weights, 4 of gradients, and 12 of optimizer states, without data parallelism."""
    answer = json.loads(pipesched(f"simulate {COUNTS} --profile llama3-8b --gpu h100 --tp 8 --sp --json").out)
    for device in answer["devices"]:
        held = device["peak_memory_by_kind"]
        assert held["weights"] > 0
        assert held["gradients"] == 2 * held["weights"]
        assert held["optimizer"] == 6 * held["weights"]
