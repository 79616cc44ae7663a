"""Traces written by hand: every time in the Timeline is known."""

import json

import pytest

import pipesched
from pipesched.profiles import ProfileError
from pipesched.profiles.costs import samples_of
from pipesched.profiles.traces import read_traces
from pipesched.schedules.ops import Recv, Send
from tests.hand_timelines import play
from tests.profiles.traces.kineto_files import BASE_NS, KinetoFile, exchanging_ranks, two_ranks

US = 1e-6


def works(timeline, rank):
    """Return text, start [us] and end [us] of the work of a rank."""
    return [
        (str(span.op), round(span.start_s / US, 3), round(span.end_s / US, 3))
        for span in timeline.of_rank(rank)
        if not isinstance(span.op, Send | Recv)
    ]


@pytest.mark.parametrize("shift_ns", [0, 250_000_000])
def test_ranges_named_as_ops_become_a_timeline_on_the_clock_of_rank_0(tmp_path, shift_ns):
    read = read_traces(two_ranks(tmp_path, base_ns=BASE_NS + shift_ns))
    assert (read.clocks.offsets_ns, read.clocks.uncertainties_ns) == ((0, shift_ns), (0, 10_000))
    assert (read.timeline.name, read.timeline.source, read.schedule.num_microbatches) == ("gpipe", "measured", 2)
    assert works(read.timeline, 0) == [("0F0", 0, 100), ("0F1", 100, 200), ("0B0", 420, 520), ("0B1", 520, 620)]
    assert works(read.timeline, 1) == [("1F0", 110, 210), ("1F1", 210, 310), ("1B0", 310, 410), ("1B1", 410, 510)]
    sends = {str(span.op): span for span in read.timeline.of_rank(0) if isinstance(span.op, Send)}
    assert sends["0SEND_F0"].start_s == pytest.approx(100 * US)
    assert sends["0SEND_F0"].end_s == pytest.approx(110 * US)


def test_a_schedule_says_the_stages_of_ranges_that_do_not(tmp_path):
    """Megatron-LM's interleaved schedule calls forward_step for every stage of a rank."""
    costs = pipesched.DeviceCost(forward_s=1e-3, backward_s=2e-3)
    predicted = pipesched.simulate(pipesched.build("interleaved", 2, 4, 2), costs)
    files = []
    for rank in (0, 1):
        file = KinetoFile(rank)
        for span in predicted.timeline.work:
            if span.rank == rank and span.end_s > span.start_s:
                name = "forward_step" if span.op.phase == "F" else "backward_step"
                file.python(f"schedules.py(3): {name}", span.start_s * 1e6, span.end_s * 1e6)
        files.append(file.write(tmp_path / f"{rank}.json"))
    pattern = "(?P<phase>forward|backward)_step$"
    schedule = pipesched.build("interleaved", 2, 4, 2)
    read = read_traces(files, patterns=[pattern], schedule=schedule, has_one_clock=True)
    expected = [row for row in works(predicted.timeline, 0) if "STEP" not in row[0]]
    assert (read.timeline.name, works(read.timeline, 0)) == ("interleaved", expected)
    with pytest.raises(
        ProfileError, match=r"0\.json: got another pass .*forward_step' \(F\), expected none, as in the"
    ):
        read_traces(files, patterns=[pattern], schedule=pipesched.build("1f1b", 2, 4))
    with pytest.raises(ProfileError, match=r"schedule 1f1b: got 3 ranks, expected 2, one for each trace"):
        read_traces(files, patterns=[pattern], schedule=pipesched.build("1f1b", 3, 4))


def test_waiting_at_the_start_of_a_range_and_posting_at_its_end_are_not_computing(tmp_path):
    first = KinetoFile(0).annotation("PP:0F0", 0, 120).slice("cpu_op", "c10d::send", 100, 110)
    first.annotation("gloo:send", 105, 900).annotation("PP:0B0", 300, 500)
    first.slice("cpu_op", "c10d::recv_", 301, 305).annotation("gloo:recv", 303, 400)
    second = KinetoFile(1).annotation("PP:1F0", 0, 250).annotation("PP:1B0", 250, 390)
    second.slice("cpu_op", "c10d::recv_", 1, 5).annotation("gloo:recv", 3, 150)
    second.slice("cpu_op", "c10d::send", 380, 385).annotation("gloo:send", 383, 900)
    read = read_traces([first.write(tmp_path / "0.json"), second.write(tmp_path / "1.json")], has_one_clock=True)
    assert works(read.timeline, 0) == [("0F0", 0, 100), ("0B0", 400, 500)]
    assert works(read.timeline, 1) == [("1F0", 150, 250), ("1B0", 250, 380)]
    recv = next(span for span in read.timeline.of_rank(1) if isinstance(span.op, Recv))
    assert [round(at_s / US) for at_s in (recv.posted_s, recv.start_s, recv.end_s)] == [1, 100, 150]
    reached = {str(span.op): round(span.posted_s / US) for rank in (0, 1) for span in read.timeline.of_rank(rank)}
    assert (reached["1F0"], reached["0B0"]) == (5, 305)  # when all was posted; from then on they wait
    assert [(str(h.op), round(h.start_s / US), round(h.end_s / US)) for h in read.timeline.hand_overs] == [
        ("0SEND_F0", 100, 301), ("0RECV_B0", 301, 305), ("1RECV_F0", 1, 5),
    ]  # fmt: skip


def test_a_rank_whose_posts_are_not_seen_waits_from_the_start(tmp_path):
    timeline = read_traces(two_ranks(tmp_path)).timeline
    assert next(span.posted_s for span in timeline.of_rank(1) if str(span.op) == "1F0") == 0
    assert timeline.hand_overs == ()


def test_a_message_whose_buffer_was_posted_late_is_on_its_way_and_not_being_taken(tmp_path):
    timeline = read_traces(exchanging_ranks(tmp_path), has_one_clock=True).timeline
    samples = samples_of([timeline], ["run"])
    assert samples.hand_over["Take"] == pytest.approx([20 * US] * 4)
    assert samples.messages == pytest.approx([820 * US] * 4, abs=11 * US)  # what it takes to post
    late = next(span for span in timeline.of_rank(1) if str(span.op) == "1RECV_F1")
    assert late.end_s - late.start_s == pytest.approx(800 * US)
    replayed = pipesched.replay(timeline).split.makespan
    assert replayed.rest_s == pytest.approx(0, abs=1e-9)
    assert replayed.hand_over_s == pytest.approx(replayed.error_s)


def test_of_nested_ranges_the_inner_one_of_a_pass_counts_and_no_other_one(tmp_path):
    first, second = two_ranks(tmp_path)
    events = json.loads(first.read_text())
    extra = KinetoFile(0).annotation("PP:0F0", 20, 90).annotation("PP:0F1", 430, 440)  # inside F0, and inside B0
    first.write_text(json.dumps(events | {"traceEvents": events["traceEvents"] + extra.events}))
    read = read_traces([first, second], has_one_clock=True)
    assert works(read.timeline, 0)[:2] == [("0F0", 0, 70), ("0F1", 80, 180)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ts", None), ("ts", "1"), ("ts", True), ("ts", 1e300), ("ts", 1e16), ("dur", 1e17), ("dur", []),
        ("name", 5), ("name", None), ("ph", {}), ("name", "PP:9F999999999"),
        ("dur", -0.5), ("cat", "kernel"), ("cat", "cuda_runtime"), ("cat", "gpu_memcpy"), ("name", "ProfilerStep#1"),
    ],
)  # fmt: skip
def test_an_event_that_is_not_what_it_should_be_is_refused_or_nothing(tmp_path, key, value):
    first, second = two_ranks(tmp_path)
    trace = json.loads(first.read_text())
    trace["traceEvents"][2][key] = value
    first.write_text(json.dumps(trace))
    with pytest.raises(ProfileError, match=r"rank0\.json"):
        read_traces([first, second])


@pytest.mark.parametrize("key", ["ts", "dur"])
def test_integers_beyond_any_float_are_refused(tmp_path, key):
    paths = two_ranks(tmp_path)
    with_digits(paths[0], lambda trace: trace["traceEvents"][2], key)
    with pytest.raises(ProfileError, match=r"rank0\.json: .*expected"):
        read_traces(paths)


@pytest.mark.parametrize("key", ["ts", "dur", "pid", "waited_s", "microbatch"])
def test_integers_beyond_any_float_are_refused_in_a_trace_of_ours(tmp_path, key):
    path = tmp_path / "trace.json"
    pipesched.trace(play(pipesched.build("gpipe", 2, 2))).save(path)

    def event(trace):
        first = next(event for event in trace["traceEvents"] if event["ph"] == "X")
        return first if key in first else first["args"]

    with_digits(path, event, key)
    with pytest.raises(ProfileError, match=r"trace\.json: .*expected"):
        read_traces([path])


def with_digits(path, place, key):
    """Put an integer of 5,000 digits into an object of a JSON file; `json` itself would not write it."""
    trace = json.loads(path.read_text())
    place(trace)[key] = "DIGITS"
    path.write_text(json.dumps(trace).replace('"DIGITS"', "-" + "9" * 5000))


def test_a_negative_duration_is_refused_with_its_place(tmp_path):
    first, second = two_ranks(tmp_path)
    trace = json.loads(first.read_text())
    trace["traceEvents"][2]["dur"] = -100
    first.write_text(json.dumps(trace))
    with pytest.raises(
        ProfileError, match=r"rank0\.json: event 'PP:0B0' at 420: dur: got -100, expected microseconds, at least 0"
    ):
        read_traces([first, second])


def test_a_trace_without_slices_is_refused_as_such(tmp_path):
    first, second = two_ranks(tmp_path)
    second.write_text("[]")
    with pytest.raises(ProfileError, match=r"rank1\.json: got a trace without slices, expected the passes of a step"):
        read_traces([first, second])


@pytest.mark.parametrize("early_s", [2, 3.5 * 3600, -2])
def test_clocks_that_are_not_one_are_not_taken_as_such(tmp_path, early_s):
    paths = two_ranks(tmp_path, base_ns=BASE_NS - round(early_s * 1e9))
    with pytest.raises(
        ProfileError,
        match=r"rank[01]\.json: rank [01]: got a message [\d.,]+ s before rank [01] sent it \(.*; try with",
    ):
        read_traces(paths, has_one_clock=True)


def test_on_one_clock_a_message_may_seem_early_by_less_than_the_quickest_take(tmp_path):
    # messages take 10 us each way: 8 us off they still come in order, 25 us off they are 15 us early
    for early_us in (8, 25):
        read = read_traces(two_ranks(tmp_path, base_ns=BASE_NS - early_us * 1000), has_one_clock=True)
        assert works(read.timeline, 1)[0] == ("1F0", 110 - early_us, 210 - early_us)
    with pytest.raises(ProfileError, match=r"rank1\.json: rank 1: got a message 3e-05 s before rank 0 sent it"):
        read_traces(two_ranks(tmp_path, base_ns=BASE_NS - 40_000), has_one_clock=True)


def test_named_passes_that_contradict_the_schedule_are_refused_with_the_first_that_differs(tmp_path):
    paths = two_ranks(tmp_path, count=3)
    assert read_traces(paths, schedule=pipesched.build("gpipe", 2, 3)).timeline.name == "gpipe"
    with pytest.raises(
        ProfileError, match=r"rank0\.json: got another pass 'PP:0F2' \(F\), expected 0B0, as in the schedule"
    ):
        read_traces(paths, schedule=pipesched.build("1f1b", 2, 3))
    with pytest.raises(
        ProfileError, match=r"rank0\.json: got another pass 'PP:0B0' \(B\), expected 0F3, as in the schedule"
    ):
        read_traces(paths, schedule=pipesched.build("gpipe", 2, 5))


def test_passes_that_are_counted_are_as_many_as_the_schedule_has(tmp_path):
    paths = two_ranks(tmp_path, lambda stage, phase, microbatch: f"{'fwd' if phase == 'F' else 'bwd'}", count=3)
    patterns = ["(?P<phase>fwd|bwd)"]
    assert not read_traces(paths, patterns=patterns, schedule=pipesched.build("gpipe", 2, 3)).is_counted
    assert read_traces(paths, patterns=patterns).is_counted
    assert not read_traces(two_ranks(tmp_path)).is_counted
    paths = two_ranks(tmp_path, lambda stage, phase, microbatch: f"{'fwd' if phase == 'F' else 'bwd'}", count=3)
    with pytest.raises(ProfileError, match=r"rank0\.json: got no more passes, expected 0F3, as in the schedule"):
        read_traces(paths, patterns=patterns, schedule=pipesched.build("gpipe", 2, 5))


@pytest.mark.parametrize(
    "fields",
    [{"baseTimeNanoseconds": -(10**30)}, {"baseTimeNanoseconds": 10**400}, {"distributedInfo": []}, {"host_name": 5}],
)
def test_fields_of_a_trace_that_mean_nothing_are_left_out_or_refused(tmp_path, fields):
    first, second = two_ranks(tmp_path)
    first.write_text(json.dumps(json.loads(first.read_text()) | fields))
    try:
        assert read_traces([first, second]).timeline.name == "gpipe"
    except ProfileError as error:
        assert "clock" in str(error)  # noqa: PT017 -- either will do


def gpu_ranks(folder):
    """Write traces of two GPUs: the host is done long before the kernels are."""
    first, second = KinetoFile(0), KinetoFile(1)
    send, recv = (
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t",
    )
    first.annotation("PP:0F0", 0, 10).kernel(1, 100, 150).kernel(5, 160, 200)
    first.annotation("PP:0SEND_F0", 10, 20).kernel(11, 200, 260, send)
    first.annotation("PP:0RECV_B0", 20, 30).kernel(21, 260, 460, recv)
    first.annotation("PP:0B0", 30, 40).kernel(33, 460, 500).kernel(35, 520, 600, tid=99)  # autograd's own thread
    first.annotation("Optimizer.step#Adam.step", 41, 50).kernel(42, 600, 650)
    second.annotation("PP:1RECV_F0", 0, 5).kernel(1, 90, 262, recv)
    second.annotation("PP:1F0", 5, 12).kernel(6, 262, 362).kernel(7, 362, 380, "ncclDevKernel_AllReduce_Sum_bf16")
    second.annotation("PP:1B0", 12, 19).kernel(13, 380, 450)
    second.annotation("Optimizer.step#Adam.step", 26, 30).kernel(27, 462, 500)
    second.annotation("PP:1SEND_B0", 19, 25).kernel(20, 450, 462, send)
    second.slice("gpu_user_annotation", "PP:1F0", 262, 380)
    return [file.write(folder / f"{rank}.json") for rank, file in enumerate((first, second))]


def test_on_a_gpu_the_kernels_count_that_a_range_launched(tmp_path):
    read = read_traces(gpu_ranks(tmp_path), has_one_clock=True)
    assert works(read.timeline, 0) == [("0F0", 0, 100), ("0B0", 360, 500), ("0STEP", 500, 550)]
    assert works(read.timeline, 1) == [("1F0", 162, 280), ("1B0", 280, 350), ("1STEP", 362, 400)]
    recvs = {str(span.op): span for rank in (0, 1) for span in read.timeline.of_rank(rank) if isinstance(span.op, Recv)}
    assert round(recvs["1RECV_F0"].end_s / US) == 162
    assert round(recvs["0RECV_B0"].end_s / US) == 360


def test_the_clocks_of_gpus_are_aligned_by_the_kernels_of_messages(tmp_path):
    read = read_traces(gpu_ranks(tmp_path))
    assert abs(read.clocks.offsets_ns[1]) <= read.clocks.uncertainties_ns[1] < 62_000


def test_one_optimizer_of_several_stages_is_divided_evenly(tmp_path):
    file = KinetoFile(0)
    for number, name in enumerate(("0F0", "1F0", "1B0", "0B0")):
        file.annotation(f"PP:{name}", 10 * number, 10 * number + 10)
    file.annotation("Optimizer.step#SGD.step", 40, 60)
    other = KinetoFile(1)
    for number, name in enumerate(("2F0", "2B0")):
        other.annotation(f"PP:{name}", 20 + number, 21 + number)
    other.annotation("Optimizer.step#SGD.step", 22, 23)
    read = read_traces([file.write(tmp_path / "0.json"), other.write(tmp_path / "1.json")], has_one_clock=True)
    assert works(read.timeline, 0)[-2:] == [("0STEP", 40, 50), ("1STEP", 50, 60)]


def several_steps(folder, numbers_of_rank):
    files = []
    for rank, numbers in enumerate(numbers_of_rank):
        file = KinetoFile(rank)
        for number in numbers:
            start = 1000 * number
            file.annotation(f"ProfilerStep#{number}", start, start + 999)
            forward, backward = ((0, 300), (110, 200))[rank]
            file.annotation(f"PP:{rank}F0", start + forward, start + forward + 50 + number)
            if (rank, number) != (1, 9):  # the last step of rank 1 is not whole
                file.annotation(f"PP:{rank}B0", start + backward, start + backward + 50)
        files.append(file.write(folder / f"{rank}.json"))
    return files


def test_the_last_whole_step_is_read_or_the_one_that_is_asked_for(tmp_path):
    files = several_steps(tmp_path, [(6, 7, 8, 9), (7, 8, 9)])
    assert (read_traces(files).step, works(read_traces(files).timeline, 0)[0]) == (8, ("0F0", 0, 58))
    assert works(read_traces(files, step=7).timeline, 0)[0] == ("0F0", 0, 57)
    with pytest.raises(ProfileError, match=r"1B0 is missing"):
        read_traces(files, step=9)
    with pytest.raises(ProfileError, match=r"1\.json: step: got 6, expected a step of this trace: 9, 8, 7"):
        read_traces(files, step=6)


def test_traces_without_a_step_in_common_are_refused(tmp_path):
    with pytest.raises(
        ProfileError, match=r"1\.json: got step 8, 7, expected a step that all traces have: .*0\.json has 6, 5"
    ):
        read_traces(several_steps(tmp_path, [(5, 6), (7, 8)]))


@pytest.mark.parametrize(
    "name", ["interleaved", "zbv", "dualpipe", "chimera", "data_parallel", "pipedream_2bw", "hybrid"]
)
def test_a_trace_of_ours_is_read_back_as_it_was(tmp_path, name):
    costs = pipesched.DeviceCost(forward_s=1, backward_s=2, backward_input_s=1, backward_weight_s=1, step_s=0.5)
    timeline = pipesched.simulate(pipesched.build(name, 4, 8), costs).timeline
    pipesched.trace(timeline).save(tmp_path / "trace.json")
    read = read_traces([tmp_path / "trace.json"]).timeline
    assert (read.name, read.rank_to_device, read.spans) == (timeline.name, timeline.rank_to_device, timeline.spans)


def test_annotate_takes_only_stages():
    with pytest.raises(ProfileError, match="annotate: got str, expected a stage"), pipesched.annotate("stage"):
        pass
