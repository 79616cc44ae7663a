"""Chrome traces of other writers: all ranks in one file, pairs of begin and end, names of known runtimes."""

import gzip
import itertools
import json
import random

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.traces import read_traces
from pipesched.simulator.analysis import metrics
from tests.profiles.traces.chrome_files import complete, lane, pairs, pipeline, pippy_name, write
from tests.profiles.traces.kineto_files import KinetoFile


def figures(read):
    """Return the makespan [ms] and the bubble [%]."""
    totals = metrics(read.timeline)
    return round(totals.makespan_s * 1e3, 3), round(100 * totals.bubble_fraction, 2)


TWO_BY_TWO = (90, 33.33)  # (2 + 1) * 30 ms, and 4 * 30 ms busy of 2 * 90


def nested(events):
    """Return events with a slice of the same pass and one of a function in each, and one around each."""
    inner = [event | {"ts": event["ts"] + 1, "dur": event["dur"] - 2} for event in events]
    function = [event | {"name": "aten::mm"} for event in inner]
    outer = [event | {"name": "run_pass"} for event in events]
    return [*outer, *events, *inner, *function]


def pairs_of(event):
    begin = {key: event[key] for key in ("pid", "tid", "ts")} | {"ph": "B"}
    return begin, begin | {"ph": "E", "ts": event["ts"] + event["dur"]}


FORMS = {
    "complete events without a category": complete(pipeline()),
    "a category": complete(pipeline(), cat="compute"),
    "a category that is no text": complete(pipeline(), cat=[1]),
    "pids": complete(pipeline(), lane=lambda rank: {"pid": 4711 + rank, "tid": 1}),
    "texts as pids": complete(pipeline(), lane=lambda rank: {"pid": f"{rank}(host/47{rank})", "tid": 0}),
    "texts as tids": complete(pipeline(), lane=lambda rank: {"pid": "0", "tid": str(rank)}),
    "begin and end": pairs(pipeline()),
    "begin and end out of order": random.Random(0).sample(
        [half | {"name": event["name"]} for event in complete(pipeline()) for half in pairs_of(event)], 16
    ),
    "async events": pairs(pipeline(), letters="be"),
    "old async events": pairs(pipeline(), letters="SF"),
    "floats": complete([(*work[:3], work[3] + 0.25, work[4] + 0.25) for work in pipeline()]),
    "floats since 1970": complete(pipeline(start_us=1.649e15 + 0.25)),
    "ranks in the arguments": [
        event | {"args": {"rank": event["tid"]}, "tid": 5} for event in complete(pipeline())
    ],
    "ranks as texts in the arguments": [
        event | {"args": {"rank": str(event["tid"])}, "tid": 5} for event in complete(pipeline())
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_all_ranks_in_one_file_are_read_in_every_form(tmp_path, form):
    read = read_traces([write(tmp_path / "all.json", FORMS[form])])
    assert (figures(read), read.timeline.name) == (TWO_BY_TWO, "1f1b")
    assert "passes have the names of PiPPy" in read.notes


@pytest.mark.parametrize("end", ["", ",", ",\n"])
def test_a_list_of_events_may_end_without_its_bracket(tmp_path, end):
    file = tmp_path / "stopped.json"
    file.write_text(json.dumps(complete(pipeline()))[:-1] + end)
    assert figures(read_traces([file])) == TWO_BY_TWO


def test_a_list_that_ends_within_an_event_is_refused(tmp_path):
    file = tmp_path / "cut.json"
    file.write_text(json.dumps(complete(pipeline()))[:-5])
    with pytest.raises(ProfileError, match="the file may be cut off"):
        read_traces([file])


@pytest.mark.parametrize("writer", [complete, pairs])
def test_a_file_per_rank_is_read_without_categories_in_any_order(tmp_path, writer):
    files = [
        write(tmp_path / f"{rank}.json", writer([work for work in pipeline(3, 4) if work[0] == rank]))
        for rank in (2, 0, 1)
    ]
    read = read_traces(files)
    assert (figures(read), read.timeline.name) == ((180, 33.33), "1f1b")  # (4 + 2) * 30 ms; 2 of 6
    assert read.files == tuple(str(tmp_path / f"{rank}.json") for rank in range(3))


def test_an_object_and_gzip_are_read_as_a_list_is(tmp_path):
    path = write(tmp_path / "all.json", complete(pipeline()), displayTimeUnit="ns", otherData={"version": "1"})
    packed = tmp_path / "packed.json"  # known by its first bytes
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert figures(read_traces([path])) == figures(read_traces([packed])) == TWO_BY_TWO


def test_slices_around_and_inside_passes_change_nothing(tmp_path):
    assert figures(read_traces([write(tmp_path / "all.json", nested(complete(pipeline())))])) == (89.998, 33.34)


def test_pairs_in_one_another_are_a_stack_and_an_end_with_a_name_ends_its_own_begin(tmp_path):
    events = []
    for rank, phase, number, start, end in pipeline():
        about, name = lane(rank), pippy_name(rank, phase, number)
        events += [
            {"name": name, "ph": "B", "ts": start} | about,
            {"name": "layer", "ph": "B", "ts": start + 5} | about,
            {"name": "layer", "ph": "B", "ts": start + 6} | about,
            {"ph": "E", "ts": start + 7} | about,
            {"name": name, "ph": "E", "ts": end} | about,
            {"name": "layer", "ph": "E", "ts": end + 1} | about,
        ]
    events = [{"ph": "E", "ts": 1} | lane(0), *events, {"name": "F_0,7", "ph": "B", "ts": 10**6} | lane(0)]
    assert figures(read_traces([write(tmp_path / "all.json", events)])) == TWO_BY_TWO


def test_a_thread_of_forwards_and_one_of_backwards_are_one_rank(tmp_path):
    events = [event | {"pid": 3, "tid": 2 * event["tid"] + (event["name"][0] == "B")} for event in complete(pipeline())]
    read = read_traces([write(tmp_path / "all.json", events)])
    assert (figures(read), len(read.files)) == (TWO_BY_TWO, 2)


@pytest.mark.parametrize("what", ["process_name", "thread_name", "process_labels"])
def test_names_of_processes_and_threads_say_the_ranks(tmp_path, what):
    """Counted passes: the rank is the stage, whatever the order of pids."""
    lanes = {0: {"pid": 9, "tid": 9}, 1: {"pid": 3, "tid": 4}}
    events = complete(pipeline(), lambda rank, phase, number: phase, lanes.get)
    for rank, where in lanes.items():
        key = "labels" if what == "process_labels" else "name"
        events.append({"ph": "M", "name": what, "args": {key: f"RANK {rank} - CPU"}} | where)
    read = read_traces([write(tmp_path / "all.json", events)], patterns=["^(?P<phase>[FB])$"])
    assert (figures(read), read.timeline.name) == (TWO_BY_TWO, "1f1b")
    assert read.files == tuple(f"{tmp_path}/all.json, rank {rank}" for rank in (0, 1))


WORDS = {"F": "forward", "B": "backward"}
NAMES = {
    "torch.distributed.pipelining": [
        lambda rank, phase, number: f"PP:{rank}{phase}{number}",
        lambda rank, phase, number: f"{rank}{phase}{number}",
        lambda rank, phase, number: f"{WORDS[phase].title()} {number}",
    ],
    "PiPPy": [pippy_name],
    "Megatron-LM": [
        lambda rank, phase, number: f"megatron/core/pipeline_parallel/schedules.py(205): {WORDS[phase]}_step",
        lambda rank, phase, number: f"{WORDS[phase]}_step (/opt/megatron/core/pipeline_parallel/schedules.py:205)",
        lambda rank, phase, number: f"{WORDS[phase]}_step",
        lambda rank, phase, number: f"{WORDS[phase]}-compute",
    ],
    "DeepSpeed": [
        lambda rank, phase, number: f"deepspeed/runtime/pipe/engine.py(700): _exec_{WORDS[phase]}_pass",
        lambda rank, phase, number: f"PipelineEngine._exec_{WORDS[phase]}_pass (/opt/deepspeed/pipe/engine.py:700)",
        lambda rank, phase, number: f"_exec_{WORDS[phase]}_pass",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("family", "name"), [(known, name) for known, names in NAMES.items() for name in names])
def test_names_of_known_runtimes_need_no_pattern_and_the_result_says_whose_they_are(tmp_path, family, name):
    for category in ("python_function", "FEE"):
        events = complete(pipeline(2, 3), name, cat=category)
        events += complete(pipeline(2, 3), lambda rank, phase, number: f"pretrain_gpt.py(12): {WORDS[phase]}_step")
        read = read_traces([write(tmp_path / "all.json", events)])
        assert (figures(read), read.timeline.name) == ((120, 25.0), "1f1b")  # 4 * 30 ms; 1 of 4
        assert read.notes == (f"passes have the names of {family}",)


def test_what_torch_dumps_of_its_own_schedule_is_read(tmp_path):
    """``_dump_chrometrace`` of torch.distributed.pipelining: a microsecond for each op, sends and receives too."""
    lists = (
        ("0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1"),
        (None, "1RECV_F0", "1F0", "1B0", "1SEND_B0", "1RECV_F1", "1F1", "1B1", "1SEND_B1"),
    )
    events = [
        {"name": op, "cat": "computation", "ph": "X", "pid": rank, "tid": rank, "ts": at, "dur": 1}
        for rank, own in enumerate(lists)
        for at, op in enumerate(own)
        if op is not None
    ]
    read = read_traces([write(tmp_path / "dump.json", events, schema=1)])
    assert read.timeline.name == "1f1b"
    assert metrics(read.timeline).makespan_s == pytest.approx(8e-6, abs=1.5e-6)


def kineto_ranks(
    folder, num_copies, pg_config=lambda rank: [], name=lambda stage, phase, number: f"PP:{stage}{phase}{number}"
):
    """Write a trace of torch.profiler for each of `num_copies` tensor-parallel ranks of four stages."""
    paths = []
    for rank in range(4 * num_copies):
        file = KinetoFile(rank)
        for stage, phase, number, start, end in pipeline(4, 4):
            if stage == rank // num_copies:
                file.annotation(name(stage, phase, number), start + rank % num_copies, end)
        info = {"backend": "nccl", "rank": rank, "world_size": 4 * num_copies, "pg_config": pg_config(rank)}
        paths.append(file.write(folder / f"rank{rank}.json", distributedInfo=info))
    return paths


def test_a_pipeline_with_a_rank_that_has_no_trace_is_refused(tmp_path):
    paths = kineto_ranks(tmp_path, 2, groups)
    with pytest.raises(ProfileError, match="got no trace of rank 4, 6, expected every rank of the process group"):
        read_traces(paths[:4])


def groups(rank):
    pipeline_ranks, tensor_ranks = list(range(rank % 2, 8, 2)), [rank - rank % 2, rank - rank % 2 + 1]
    return [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8, "ranks": list(range(8))},
        {"pg_name": "3", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "pg_size": 2, "ranks": tensor_ranks},
        {"pg_name": "7", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "pg_size": 4, "ranks": str(pipeline_ranks)},
    ]


@pytest.mark.parametrize(
    ("known", "name"),
    [
        (groups, lambda stage, phase, number: f"PP:{stage}{phase}{number}"),
        (groups, lambda stage, phase, number: f"{WORDS[phase]}_step"),
        (lambda rank: [], lambda stage, phase, number: f"PP:{stage}{phase}{number}"),
        (lambda rank: [], lambda stage, phase, number: f"{WORDS[phase]}_step"),
    ],
    ids=["groups and stages", "groups", "stages", "times"],
)
def test_of_tensor_parallel_copies_one_file_of_each_stage_is_read(tmp_path, known, name):
    read = read_traces(kineto_ranks(tmp_path, 2, known, name))
    assert (figures(read), read.timeline.name) == ((210, 42.86), "1f1b")  # (4 + 3) * 30 ms; 3 of 7
    assert [path.rsplit("/", 1)[1] for path in read.files] == [f"rank{rank}.json" for rank in (0, 2, 4, 6)]
    assert read.notes[0].startswith("8 files, 4 stages; read rank0.json, rank2.json, rank4.json, rank6.json: ")


def test_copies_in_one_file_are_left_out_too(tmp_path):
    events = [event | {"tid": 4 * copy + event["tid"]} for copy in (0, 1) for event in complete(pipeline(4, 4))]
    read = read_traces([write(tmp_path / "all.json", events)])
    assert (figures(read), read.notes[0][:18]) == ((210, 42.86), "8 ranks, 4 stages;")


def test_one_rank_or_no_pass_is_refused_with_what_is_in_the_file(tmp_path):
    single = write(tmp_path / "one.json", complete([work for work in pipeline() if work[0] == 0]))
    with pytest.raises(ProfileError, match=r"one\.json: got the trace of one rank, with 4 slices, 4 of them passes"):
        read_traces([single])
    other = write(tmp_path / "other.json", complete(pipeline(), lambda rank, phase, number: f"stage{rank}:{phase}"))
    with pytest.raises(ProfileError, match=r"with 8 slices, 0 of them passes, 'stage0:F' 2 times, 'stage0:B' 2 times"):
        read_traces([other])
    with pytest.raises(ProfileError, match=r"other\.json: got no range of a pass.* 'stage0:F' 2 times"):
        read_traces([other, single])


def test_kernels_of_merged_ranks_belong_to_the_rank_that_launched_them(tmp_path):
    """Merged as TraceLens does: pids and correlation ids moved apart, ranks in arguments and process names."""
    events, labels = [], []
    for rank, number in itertools.product((0, 1), range(4)):
        phase, microbatch = ("F", "F", "B", "B")[number], number % 2
        start = 1000 * number + (1000 if phase == "F" else 2000 - 1000 * rank) * (rank if phase == "F" else 1)
        about = {"ph": "X", "args": {"rank": rank, "correlation": 100 * rank + number}}
        events += [
            about | {"cat": "user_annotation", "name": f"PP:{rank}{phase}{microbatch}", "ts": number, "dur": 1,
                     "pid": 10 * rank, "tid": 1},
            about | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": number + 0.5, "dur": 0.1,
                     "pid": 10 * rank, "tid": 1},
            about | {"cat": "kernel", "name": "gemm", "ts": start, "dur": 1000, "pid": 10 * rank + 1, "tid": 7},
        ]  # fmt: skip
    read = read_traces([write(tmp_path / "merged.json", events + labels, displayTimeUnit="ms")])
    assert [round(span.start_s * 1e3) for span in read.timeline.of_rank(0) if str(span.op) in ("0F0", "0B1")] == [0, 5]
    for event in events:
        event["args"].pop("rank", None)
        event["args"]["correlation"] = event["args"]["correlation"] % 100
    with pytest.raises(ProfileError, match=r"merged\.json: got kernels of several ranks with the same correlation ids"):
        read_traces([write(tmp_path / "merged.json", events)])
