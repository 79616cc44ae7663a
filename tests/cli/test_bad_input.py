"""Bad input is one line on stderr, exit code 2 (4 when something is not there), and nothing is written."""

import sys

import pytest

CLUSTER = '{"format": "pipesched-cluster", "version": 1, "devices": [{}], "intra": %s}'
SIMULATE = "simulate -s 1f1b -p 2 -m 4"
COSTS = "--uniform f=1,b=2"


@pytest.fixture
def bad(folder):
    """Add files that are broken in every way."""
    header = "stage,forward_s,backward_s\n"
    for name, cell in {"nan": "nan", "negative": "-1", "infinite": "inf", "word": "x", "missing": ""}.items():
        (folder / f"{name}.csv").write_text(f"{header}0,{cell},1\n1,1,1\n")
    (folder / "three.csv").write_text(f"{header}0,1,1\n1,1,1\n2,1,1\n")
    (folder / "junk.csv").write_text("0F0,0X1\n1F0\n")
    (folder / "empty.csv").write_text("")
    (folder / "empty.json").write_text("")
    (folder / "timeline.json").write_text('{"format": "pipesched.timeline"}')
    (folder / "cut.json").write_text('{"a": ')
    (folder / "other.json").write_text('{"format": "x"}')
    (folder / "one.json").write_text(CLUSTER % '{"latency_s": 0, "bandwidth_bytes_per_s": null}')
    (folder / "nan.json").write_text(CLUSTER % '{"latency_s": NaN, "bandwidth_bytes_per_s": null}')
    for suffix in ("csv", "json"):
        (folder / f"binary.{suffix}").write_bytes(bytes(range(256)) * 4)
        (folder / f"folder.{suffix}").mkdir()
    return folder


LIGHT = [
    ("nosuch", "No such command 'nosuch'"),
    ("simulate --nosuch", "--nosuch"),
    ("simulate", "no schedule given; try"),
    (f"simulate -s 1f1bb -p 2 -m 4 {COSTS}", "got '1f1bb', did you mean 1f1b? expected one of naive, gpipe, 1f1b"),
    (f"simulate -s foo -p 2 -m 4 {COSTS}", "got 'foo', expected one of naive, gpipe, 1f1b"),
    (f"simulate -s 1f1b -p 2 -m 0 {COSTS}", "'-m': got '0', expected at least 1"),
    (f"simulate -s 1f1b -p 2 -m -3 {COSTS}", "'-m': got '-3'"),
    (f"simulate -s 1f1b -p 2 -m x {COSTS}", "'-m': got 'x', expected an integer"),
    (f"simulate -s 1f1b -p 2 -m 1.5 {COSTS}", "'-m': got '1.5'"),
    (f"simulate -s 1f1b -p 0 -m 3 {COSTS}", "'-p': got '0'"),
    (f"simulate -s 1f1b -m 4 {COSTS}", "-p missing; try"),
    (f"simulate -s 1f1b -p 100000 -m 100000 {COSTS}", "expected at most 5000000"),
    (f"simulate -s 1f1b -p {10**30} -m 4 {COSTS}", "expected at most 5000000"),
    (f"{SIMULATE} {COSTS} --width {10**11}", "--width: got 100000000000 copies of 2 ranks and 4"),
    (f"simulate -s gpipe -p 12000 -m 2 {COSTS}", "gpipe: cannot be lowered: got 12000 ranks with 60000 ops in all"),
    (f"plan profile.json -b 8 --devices {10**9}", f"devices: got {10**9} for --devices, expected at most 100000"),
    (f"{SIMULATE}", "costs: got none, expected one of"),
    (f"{SIMULATE} {COSTS} --stage-costs stages.csv", "costs: got --stage-costs and --uniform"),
    (f"{SIMULATE} --uniform f=nan,b=2", "--uniform: f: got nan, expected a finite number"),
    (f"{SIMULATE} --uniform f=-1,b=2", "--uniform: f: got -1"),
    (f"{SIMULATE} --uniform f=inf,b=2", "--uniform: f: got inf"),
    (f"{SIMULATE} --uniform f=1e308,b=1e308", "got a makespan of inf s"),
    (f"{SIMULATE} --uniform f=1e-320,b=0", "no op takes time"),
    ("run -s gpipe -p 1 -m 1 --uniform f=1e300,b=1", "emulate.stages.0.forward_s: got 1e+300, expected 0 to 604800"),
    ("run -s gpipe -p 2 -m 2 --uniform f=1,b=1 --link latency_s=1e6", "costs: got a list that is predicted to take"),
    ("run -s gpipe -p 2 -m 2 --uniform f=1,b=1 --timeout 1e300", "'--timeout': got '1e300', expected at most 604800"),
    ("train mlp -s gpipe -p 2 --timeout 604801", "'--timeout': got '604801', expected at most 604800"),
    ("run -s gpipe -p 2 -m 2 --uniform f=1,b=1 --timeout nan", "'--timeout': got 'nan', expected a number"),
    (f"{SIMULATE} --uniform q=1", "--uniform: got q, expected one of f, b, i, w"),
    (f"{SIMULATE} --uniform f", "--uniform: got 'f', expected key=value"),
    (f"{SIMULATE} --uniform f=1", "expected b, or both i and w"),
    ("show -s 1f1b_rr -p 4 -m 4 --set replicas=2,1,1", "got '1', expected key=value; try --set replicas=2:1:1"),
    ("compare timeline.json nope.json", "nope.json: got nothing there, expected a Timeline as timeline.json is one"),
    ("compare gpipe timeline.json", "gpipe: got no Timeline, expected"),
    ("compare timeline.json", "timeline.json: got 1 Timelines, expected two"),
    (f"{SIMULATE} --uniform f=1,f=2,b=1", "got f twice"),
    (f"{SIMULATE} {COSTS} --partition 1,1", "expected them with --profile only"),
    (f"{SIMULATE} {COSTS} --microbatch-size 2", "expected them with --profile only"),
    (f"{SIMULATE} {COSTS} --link latency_s=nan", "--link: latency_s: got nan"),
    (f"{SIMULATE} {COSTS} --link bandwidth_bytes_per_s=0", "--link: bandwidth_bytes_per_s: got 0"),
    (f"{SIMULATE} {COSTS} --link speed=1", "--link: got speed, expected one of latency_s"),
    (f"{SIMULATE} {COSTS} --link latency_s=0 --cluster one.json", "got --cluster and --link"),
    (f"{SIMULATE} {COSTS} --cluster one.json", "one.json: devices: got 1, expected 2"),
    (f"{SIMULATE} {COSTS} --cluster nan.json", "nan.json: intra.latency_s: got nan"),
    (f"{SIMULATE} {COSTS} --protocol later", "got 'later', expected one of 'rendezvous', 'eager'"),
    (f"{SIMULATE} {COSTS} --jitter nan", "'--jitter': got 'nan'"),
    (f"{SIMULATE} {COSTS} --jitter 11", "'--jitter': got '11'"),
    (f"{SIMULATE} {COSTS} --seed -1", "'--seed': got '-1'"),
    (f"{SIMULATE} {COSTS} --runs 5", "--runs: got 5 without --jitter"),
    (f"{SIMULATE} {COSTS} --sends later", "got 'later', expected one of 'posted', 'blocking'"),
    (f"{SIMULATE} {COSTS} --chunk-bytes 0", "--chunk-bytes: got '0', expected a size above 0"),
    (f"{SIMULATE} {COSTS} --slowdown -1", "'--slowdown': got '-1'"),
    (f"{SIMULATE} {COSTS} --convert-bytes-per-s 1e9", "--convert-bytes-per-s: got it alone"),
    (f"{SIMULATE} {COSTS} --slow device=2,factor=2", "--slow: device: got device 2, expected 0 to 1"),
    (f"{SIMULATE} {COSTS} --slow device=0", "--slow: got 'device=0', expected a device or a link, and a factor"),
    (f"{SIMULATE} {COSTS} --slow device=0,link=0-1,factor=2", "expected a device or a link, and a factor"),
    (f"{SIMULATE} {COSTS} --slow device=0,factor=0", "--slow: factor: got 0, expected more than 0"),
    (f"{SIMULATE} {COSTS} --slow device=0,factor=nan", "--slow: factor: got nan"),
    (f"{SIMULATE} {COSTS} --slow device=x,factor=2", "--slow: device: got x, expected a whole number"),
    (f"{SIMULATE} {COSTS} --slow link=1,factor=2", "--slow: link: got '1', expected two devices; try link=0-1"),
    (f"{SIMULATE} {COSTS} --slow link=0-7,factor=2", "--slow: link: got device 7, expected 0 to 1"),
    (f"{SIMULATE} {COSTS} --slow rank=0,factor=2", "--slow: got rank, expected one of device, link, factor"),
    *((f"{SIMULATE} --stage-costs {name}.csv", f"{name}.csv: row 2, column forward_s: got")
      for name in ("nan", "negative", "infinite", "word", "missing")),
    (f"{SIMULATE} --stage-costs three.csv", "three.csv: got 3 stages, expected 2"),
    (f"{SIMULATE} --stage-costs empty.csv", "empty.csv: got 0 rows, expected a header"),
    *((f"{SIMULATE} {option} {name}", f"{name}: ")
      for option in ("--stage-costs", "--profile", f"{COSTS} --cluster")
      for name in ("binary.csv", "binary.json", "folder.csv", "folder.json", "none.csv", "none.json")),
    *((f"simulate -f {name} {COSTS}", f"{name}: ")
      for name in ("junk.csv", "empty.csv", "cut.json", "other.json", "binary.csv", "binary.json", "folder.csv")),
    *((f"gantt {name}", f"{name}: ") for name in ("cut.json", "other.json", "binary.json", "folder.json", "none.json")),
    ("trace mine.csv", "mine.csv: line 1"),
    (f"{SIMULATE} --profile cut.json", "cut.json: got Invalid JSON"),
    (f"{SIMULATE} --profile one.json", "one.json: format: got 'pipesched-cluster', expected 'pipesched-profile'"),
    (f"{SIMULATE} -v 2 {COSTS}", "got 2 chunks, expected 1: its stages per rank are fixed; try interleaved"),
    (f"simulate -s interleaved -p 2 -m 4 -v 0 {COSTS}", "'-v': got '0'"),
    (f"simulate -s interleaved -p 2 -m 4 --set num_chunks=1 {COSTS}", "--set: got num_chunks"),
    (f"simulate -s 1f1b_afp -p 2 -m 4 --set adv=1 {COSTS}", "--set: got adv, expected one of advance"),
    (f"simulate -s 1f1b_afp -p 2 -m 4 --set advance=x {COSTS}", "--set: advance: got x, expected a whole number"),
    (f"simulate -s 1f1b_afp -p 2 -m 4 --set advance=1.0 {COSTS}", "--set: advance: got 1.0, expected a whole number"),
    (f"simulate -s 1f1b_afp -p 2 -m 4 --set advance=1 --set advance=2 {COSTS}", "got advance twice"),
    ("show -s zb_auto -p 2 -m 4 --set f=nan", "--set: f: got nan, expected a finite number of 0 or more"),
    ("show -s zb_auto -p 2 -m 4 --set f=1,limit=x", "--set: limit: got x, expected a finite number"),
    ("show -s zb_auto -p 2 -m 4 --set limit=0.5", "zb_auto: limit is 0.5, expected a finite number of at least 1"),
    (f"simulate -s 1f1b -p 2 -m 4 --recompute yes {COSTS}", "--recompute: got 'yes', expected all, or stages as 0,2"),
    (f"simulate -s 1f1b -p 2 -m 4 --recompute 1,2 {COSTS}", "1f1b: recompute: got stage 2, expected 0 to 1"),
    ("simulate -s 1f1b -p 2 -m 4 --uniform f=1,b=2,overlap=2", "overlap: got 2, expected a share of at most 1"),
    (f"simulate -s dualpipe -p 3 -m 4 {COSTS}", "dualpipe: got 3 ranks, expected an even number"),
    (f"simulate -s data_parallel -p 3 -m 2 {COSTS}", "data_parallel: got 2 micro-batches for 3 ranks"),
    (f"simulate -s 1f1b -f mine.csv {COSTS}", "leave out --schedule"),
    (f"{SIMULATE} {COSTS} --timeline x.json --out y.bad", "y.bad: got suffix '.bad', expected .json; try y.json"),
    (f"{SIMULATE} {COSTS} --timeline x.bad --out y.json", "x.bad: got suffix '.bad'"),
    (f"{SIMULATE} {COSTS} --timeline x.json --out none/y.json", "none/y.json: got no folder 'none'"),
    (f"{SIMULATE} {COSTS} --timeline x.json --out folder.json", "folder.json: got a folder"),
    (f"{SIMULATE} {COSTS} --timeline x.json --out x.json", "x.json: got it for two outputs"),
    ("show -f mine.csv --out s.png", "s.png: got suffix '.png', expected .txt or .json or .csv"),
    ("show -f mine.csv --out s.png", "a picture is drawn by 'pipesched gantt --out s.png'"),
    ("show -f mine.csv --out s.SVG --format grid", "a picture is drawn by 'pipesched gantt --out s.SVG'"),
    ("show -f mine.csv --out s.log", "s.log: got suffix '.log', expected .txt or .json or .csv or none; try s.txt"),
    ("show -f mine.csv --format csv --out x.json", "x.json: got suffix '.json', expected .csv"),
    ("show -f mine.csv --format text", "got 'text', expected one of 'grid'"),
    ("show -s pipedream -p 2 -m 4 --format csv", "expected what PyTorch's CSV can say"),
    (f"gantt -f mine.csv {COSTS} --out x.bad", "x.bad: got suffix '.bad'"),
    (f"gantt mine.csv {COSTS}", "got options of a schedule or its costs too"),
    (f"trace -f mine.csv {COSTS} --out x.png", "x.png: got suffix '.png', expected .json"),
    (f"{SIMULATE} {COSTS} --timeline x.pdf", "a picture is drawn by 'pipesched gantt --out x.pdf'"),
    ("compare", "got no schedules"),
    ("compare gpipe,1f1b", "-p and -m missing"),
    (f"compare gpipe,zz -p 2 -m 4 {COSTS}", "got 'zz'"),
    (f"compare gpipe -p 2 -m 4 {COSTS} --gantt x.png --out y.bad", "y.bad: got suffix '.bad'"),
    (f"compare gpipe -p 2 -m 4 {COSTS} -v 2", "-v: got 2, expected a schedule that takes chunks"),
    (f"compare gpipe -p 2 -m 4 {COSTS} --set advance=1", "--set: got advance=1"),
    (f"compare gpipe -p 2 -m 4 {COSTS} --stage-costs stages.csv", "got --stage-costs and --uniform"),
    ("compare binary.json other.json", "binary.json: "),
]  # fmt: skip

TORCH = "run -s 1f1b -p 2 -m 4"
HEAVY = [
    (f"train mlp -s gpipe -p 2 --width {10**9} {COSTS}", f"gpipe: got {10**9} x 2 ranks, expected at most 4096"),
    (f"train mlp -s pipedream -p {10**9} -m 1 {COSTS}", f"pipedream: got 1 x {10**9} ranks, expected at most 4096"),
    (f"train mlp -s pipedream -p 2 --width 600 --batch-size 600 {COSTS}", "got 1200 ranks in one process, expected"),
    (f"train mlp -s gpipe -p 2 --batch-size {10**12} {COSTS}", "'--batch-size': got '1000000000000', expected at most"),
    (f"train mlp -s gpipe -p 2 --lr nan {COSTS}", "'--lr': got 'nan', expected a number; see"),
    ("train digits -s avgpipe -p 2 -m 3 --uniform f=1,b=2", "avgpipe: got 3 micro-batches on 2 pipelines, expected as"),
    ("train digits -s avgpipe -p 2 --averaging slow --uniform f=1,b=2", "'--averaging': got 'slow', expected one of"),
    ("train gpt:text=no.txt -s gpipe -p 2 -m 2 --steps 1 --uniform f=1,b=2", "text no.txt: got No such file or dir"),
    ("compare gpipe -p 2 -m 4 --uniform f=1,b=2 --memory-limit 9e9", "--memory-limit: got costs that say no bytes"),
    ("profile zzz", "got an unknown model, expected one of conv, digits, gpt, lstm, mlp"),
    ("profile gpt:layerz=2", "unknown argument 'layerz'"),
    ("profile none.such:factory", "importing none.such raised ModuleNotFoundError"),
    ("profile mlp --microbatch-sizes 0", "--microbatch-sizes: got '0'"),
    ("profile mlp --dtype int8", "'--dtype': got 'int8', expected one of 'float32'"),
    ("profile mlp --optimizer zzz", "'--optimizer': got 'zzz', expected one of 'sgd'"),
    ("profile mlp --out none/p.json", "none/p.json: got no folder"),
    ("profile-links", "Missing option '--out'"),
    ("profile-links --out x.csv", "x.csv: got suffix '.csv', expected .json"),
    (f"{TORCH}", "costs: got none"),
    (f"{TORCH} --model mlp {COSTS}", "got costs to emulate too"),
    (f"{TORCH} --model mlp --link latency_s=1", "the messages of a model are real"),
    (f"run -s pipeoptim -p 2 -m 4 {COSTS} --averaging synchronous", "expected a schedule that is averaged"),
    (f"run -s gpipe -p 2 -m 4 {COSTS} --prediction adam", "expected a schedule that looks ahead"),
    (f"run -s avgpipe -p 2 -m 4 --set pipelines=2 {COSTS} --link latency_s=1", "several ranks on a device"),
    (f"{TORCH} --model mlp:layers=1", "partition: got 2 stages for 1 layers"),
    (f"{TORCH} --model mlp --partition 3,3", "partition: got '3,3', 2 stages of 6 layers in all"),
    (f"{TORCH} --model mlp --partition balanced", "got balanced without --profile"),
    (f"run -s avgpipe -p 2 -m 4 {COSTS} --averaging synchronous", "averaging: got synchronous with emulate"),
    (f"{TORCH} --model mlp --backend nccl", "--backend: got nccl with --device cpu"),
    (f"{TORCH} --model mlp --lr inf", "'--lr': got 'inf'"),
    (f"{TORCH} --model mlp --dtype float16", "--dtype: got float16 with adamw, whose epsilon of 1e-08 is 0 in it"),
    (f"{TORCH} --model mlp --dtype float16 --job x.json", "expected bfloat16, float32 or float64; try bfloat16, or"),
    ("run -s xpipe -p 2 -m 2 --model mlp --dtype float16 --optimizer sgd", "with Adam's rule of prediction, whose eps"),
    ("train digits -s gpipe -p 2 -m 2 --dtype float16 --optimizer adam", "--dtype: got float16 with adam, whose eps"),
    ("train digits -s xpipe -p 2 --dtype float16 --optimizer sgd", "try bfloat16, or --prediction momentum"),
    ("verify mlp -p 2 -m 4 --dtype float16", "--dtype: got float16 with adamw"),
    (
        "verify mlp -s gpipe,xpipe -p 2 -m 4 --dtype float16 --optimizer momentum",
        "--dtype: got float16 with Adam's rule",
    ),
    ("tune mlp -p 2 -b 4 --verify 1 --dtype float16", "--dtype: got float16 with adamw"),
    (f"{TORCH} --model mlp --out x.bad", "x.bad: got suffix '.bad'"),
    (f"{TORCH} --model mlp --job x.json --out y.json", "--job: got --out too"),
    (
        "run -s 1f1b -p 2 -m 4 --uniform f=100,b=200",
        "got 60 s, but 0B0 of rank 0 is predicted to wait 200 s",
    ),
    (f"{TORCH} --model mlp --profile one.json", "one.json: format"),
    ("verify", "Missing argument"),
    ("verify mlp -p 2 -m 4 -s ,", "--schedule: got ','"),
    (f"verify mlp -p 2 -m 4 {COSTS}", "verify: got costs by hand"),
    ("verify mlp:layers=1 -p 2 -m 4", "partition: got 2 stages for 1 layers"),
    ("verify mlp -p 2 -m 4 --out mine.csv", "mine.csv: got a file, expected a folder"),
    ("verify mlp -p 2 -m 4 --cluster one.json", "one.json: devices: got 1, expected 2"),
]


@pytest.mark.parametrize(("line", "words"), [*LIGHT, *HEAVY], ids=lambda text: text[:60])
def test_bad_input_is_told_in_one_line_and_nothing_is_written(pipesched, bad, line, words):
    before = sorted(bad.rglob("*"))
    answer = pipesched(line)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("pipesched: ")
    assert answer.err.count("\n") == 1
    assert words in answer.err
    assert sorted(bad.rglob("*")) == before


def test_parquet_without_pyarrow_names_pyarrow(pipesched, folder, monkeypatch):
    monkeypatch.setattr("pipesched.cli.output.output_files.find_spec", lambda name: None)
    answer = pipesched(f"{SIMULATE} {COSTS} --timeline x.parquet --out y.json")
    assert (answer.code, answer.out, answer.err.count("\n")) == (4, "", 1)
    assert "pip install pyarrow" in answer.err
    assert not (folder / "y.json").exists()


def test_a_package_that_is_missing_is_named(pipesched, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "pipesched.simulator.views.gantt_figure", raising=False)
    answer = pipesched(f"gantt -f mine.csv {COSTS} --out x.png")
    assert answer.code == 4
    assert "matplotlib" in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        "profile mlp --device cuda",
        f"{TORCH} --model mlp --device cuda",
        "verify mlp -p 2 -m 4 --device cuda",
        "profile-links --out x.json --backend nccl",
    ],
)
def test_a_gpu_that_is_not_there_is_said_with_what_to_try(pipesched, folder, monkeypatch, line):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    before = sorted(folder.iterdir())
    answer = pipesched(line)
    assert (answer.code, answer.out, answer.err.count("\n")) == (4, "", 1)
    assert "expected a GPU, and torch sees none here; try --" in answer.err
    assert sorted(folder.iterdir()) == before
