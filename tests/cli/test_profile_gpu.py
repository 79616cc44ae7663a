"""`pipesched profile MODEL --gpu`: costs without a machine, and what takes them."""

import json

GPT = "gpt:layers=6,width=1024,heads=16,context=512,vocab=1024"


def test_an_estimate_is_shown_written_and_planned_with(pipesched, folder):
    answer = pipesched(f"profile {GPT} --gpu h100 --dtype bfloat16 --tensor-parallel 2 --out gpt.json")
    assert (answer.code, answer.err) == (0, "")
    assert "h100 of 80 GB, estimated: 794.2 TFLOP/s in bfloat16" in answer.out
    written = (folder / "gpt.json").read_text()
    provenance = json.loads(written)["provenance"]
    assert (provenance["optimizer"], provenance["repeats"]) == ("adamw", 0)
    assert [layer["name"] for layer in json.loads(written)["layers"]][:2] == ["embedding", "block 0"]

    planned = pipesched("plan gpt.json -b 8 --devices 4 --memory-limit 80GB --out plan.json")
    assert (planned.code, planned.err) == (0, "")
    assert "estimated" in json.loads((folder / "plan.json").read_text())["origin"]
    simulated = pipesched("simulate -s zb_h1 -p 2 -m 4 --profile gpt.json")
    assert (simulated.code, simulated.err) == (0, "")


def test_the_efficiency_and_what_is_computed_again_change_the_seconds(pipesched):
    def backward_s(options):
        answer = pipesched(f"profile {GPT} --gpu a100 --microbatch-sizes 2 --json {options}")
        return json.loads(answer.out)["layers"][1]["measurements"][0]["backward_s"]

    assert backward_s("--efficiency 0.3") > backward_s("--selective-recompute") > backward_s("")


def test_runs_are_measured_and_not_estimated(pipesched):
    answer = pipesched("profile --from run.json --gpu h100")
    assert answer.code == 2
    assert (
        answer.err
        == "pipesched: profile: got an option of how layers are estimated without MODEL, expected both; leave it out\n"
    )
