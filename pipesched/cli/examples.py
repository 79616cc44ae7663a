"""Examples of every command, as its help page shows them."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "list": ("list", "list --wide", "list --json"),
    "show": (
        "show -s 1f1b -p 4 -m 8",
        "show -s zbv -p 4 -m 8 --format csv-comms --out zbv.csv",
        "show -f mine.csv --out mine.json",
    ),
    "check": ("check -f mine.csv", "check -s dualpipe -p 4 -m 8 --backend nccl"),
    "versions": (
        "versions -s pipedream -p 4 -m 16",
        "versions -s spectrain -p 4 -m 64 --plot staleness.png",
    ),
    "simulate": (
        "simulate -s 1f1b -p 4 -m 16 --uniform f=10ms,b=20ms",
        "simulate -f mine.csv --stage-costs stages.csv --link latency_s=10us",
        "simulate -s zbv -p 4 -m 16 --profile gpt.json --out zbv.html",
        "simulate -s 1f1b -p 4 -m 16 --uniform f=1,b=2 --fail-every 3h \\\n"
        "      --restart 120s --checkpoint 20s --steps 10000",
    ),
    "compare": (
        "compare --all -p 4 -m 16 --uniform f=10ms,i=10ms,w=10ms",
        "compare gpipe,1f1b,zb_h1 -p 8 -m 32 --layer-costs layers.csv",
        "compare predicted.json measured.json",
    ),
    "replay": ("replay run.json", "replay run.json --profile gpt.json --gantt both.png"),
    "gantt": (
        "gantt -s 1f1b -p 4 -m 8 --uniform f=10ms,b=20ms",
        "gantt predicted.json measured.json --out both.html",
        "gantt run.json --memory --idle --from 10ms --to 50ms --out part.svg",
    ),
    "trace": (
        "trace -s 1f1b -p 4 -m 8 --uniform f=10ms,b=20ms --out 1f1b.json",
        "trace run.json --out trace.json",
    ),
    "import": (
        "import rank0.json rank1.json --out run.json",
        "import rank*.json -s interleaved -p 4 -m 8 -v 2",
    ),
    "profile": (
        "profile gpt:layers=8 --microbatch-sizes 1,2,4 --out gpt.json",
        "profile gpt:layers=96,width=12288 --gpu h100 --dtype bfloat16",
        "profile --from run.json --profile gpt.json --out fitted.json",
        "profile --layer-costs layers.csv --microbatch-size 2 --out p.json",
    ),
    "partition": (
        "partition gpt.json -p 4",
        "partition gpt.json -p 4 --by time --memory-limit 16GB",
    ),
    "plan": (
        "plan gpt.json -b 64 --nodes 2 --machine dgx-a100 --out plan.json",
        "plan gpt:layers=8 -b 32 --devices 4 -s 1f1b,zb_h1 --explain",
        "plan layers.csv -b 32 --devices 4 --microbatch-sizes 2 --out x.html",
    ),
    "export": (
        "export megatron --plan plan.json",
        "export torchtitan -s zb_h1 -p 2 -m 8 --partition 5,5 \\\n      --microbatch-size 2",
    ),
    "profile-links": ("profile-links --out cluster.json", "profile-links -p 4 --sizes 1KiB,1MiB --out cluster.json"),
    "run": (
        "run -f mine.csv --stage-costs stages.csv --out run.json",
        "run -s 1f1b -p 2 -m 8 --model gpt:layers=4",
        "run --plan plan.json --out measured.json",
    ),
    "train": (
        "train digits -s 1f1b -p 2 --steps 200",
        "train digits -p 2 --compare gpipe,pipedream --plot losses.png",
    ),
    "sweep": (
        "sweep -s 1f1b,zb_h1 -p 4,8 -m 8:64:x2 --uniform f=1ms,i=1ms,w=1ms",
        "sweep -s interleaved -p 8 -m 8:512:x2 -v 1,2,4 --profile gpt.json \\\n"
        "      --where 'm % p == 0' --out sweep.png",
        "sweep -s zbv -p 4 -m 16 --layer-costs layers.csv \\\n      --link bandwidth=1GB/s:64GB/s:x2 --out sweep.csv",
    ),
    "optimize": (
        "optimize -s zb_h1 -p 4 -m 8 --uniform f=1,i=1,w=1",
        "optimize -s 1f1b -p 4 -m 8 --layer-costs layers.csv --split \\\n"
        "      --in-flight 4 --seconds 60 --out best.csv",
    ),
    "tune": (
        "tune gpt.json -p 2 -b 32 --memory-limit 8GB",
        "tune gpt:layers=4 -p 2 -b 32 -s avgpipe,zb_h1 --verify 3",
    ),
    "verify": (
        "verify gpt -s gpipe,1f1b -p 2 -m 8 --microbatch-size 2",
        "verify gpt -p 2 -m 8 --rounds 5 --out both.html",
    ),
    "schema": ("schema", "schema profile --out profile.schema.json", "schema --all --out ."),
    "what-if": (
        "what-if run.json -s zbv -m 32",
        "what-if run.json --slow device=1,factor=1.2 --link bandwidth=x2",
    ),
}
