"""Runs of lists that are made while they are read, all ranks in one process."""

import gc
from itertools import count

import pytest
import torch

from pipesched.executor import ExecutionError, RunEnded, RunSettings
from pipesched.executor.core import Batch, build_stages, make_batch
from pipesched.executor.core.gradients import loss_scales, step_sizes
from pipesched.executor.core.schedule_queries import channels, is_flushed, lists_of
from pipesched.executor.runs import local_ranks, run_local
from pipesched.schedules import repeat
from pipesched.schedules.builders import build, build_generated, find
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Send, stages_of
from pipesched.schedules.transforms import recompute, training_run
from tests.executor.models import WIDTH, plain
from tests.executor.pipelines import CPU, SYNCHRONOUS, InProcess, Local, assert_equal, even_bounds
from tests.executor.recurrences import SCHEMES


class GeneratedRun(InProcess):
    """All ranks of a Schedule in this process, in float64; what the listeners heard."""

    def __init__(self, schedule, *, on_loss=None, prediction=None):
        self.schedule = schedule
        self.model = plain(max(3, schedule.num_stages))
        self.losses, self.versions = {}, []
        bounds = even_bounds(len(self.model.layers), schedule.num_stages)
        settings = RunSettings(optimizer="momentum", lr=0.02, dtype="float64", prediction=prediction)

        def build(rank):
            stages = build_stages(schedule, rank, self.model, bounds, settings, CPU, on_loss=on_loss or self.hear)
            for index, stage in stages.items():
                stage.on_step = lambda version, index=index: self.versions.append((index, version))
            return stages

        self.ranks = local_ranks(schedule, build)

    def hear(self, microbatch, output, target, loss):
        assert output.shape == target.shape == (2, WIDTH)
        assert not output.requires_grad
        torch.testing.assert_close(torch.nn.functional.mse_loss(output, target), loss, rtol=1e-14, atol=0)
        self.losses[microbatch] = loss.item()

    def run(self, batch=None):
        m = self.schedule.num_microbatches
        run_local(self.ranks, batch or make_batch(self.model, m, 2, seed=0, dtype=torch.float64, device=CPU))
        return self


class Endless:
    """Micro-batches by number, however many."""

    def __init__(self):
        self.few = torch.randn(7, 2, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def __getitem__(self, index):
        return self.few[index % 7]


def eager(schedule):
    return Local(schedule, plain(max(3, schedule.num_stages)), optimizer="momentum", lr=0.02).run()


@pytest.mark.parametrize(
    ("name", "recomputes"), [*((name, False) for name in SCHEMES), ("pipedream", True), ("1f1b_rr", True)]
)
def test_weights_and_losses_are_those_of_the_lists_in_memory(name, recomputes):
    transform = recompute if recomputes else lambda lists: lists
    run = GeneratedRun(transform(build_generated(name, 4, 24))).run()
    expected = eager(transform(build(name, 4, 24)))
    assert_equal(run.parameters, expected.parameters, relative=1e-15)
    assert run.losses == expected.stage(run.schedule.num_stages - 1).losses()
    steps = {k: sum(1 for stage, _ in run.versions if stage == k) for k in range(run.schedule.num_stages)}
    assert {k: expected.stage(k).weights.version * len(expected.replicas(k)) for k in steps} == steps


@pytest.mark.parametrize("name", ["gpipe", "interleaved", "zbv", "chimera", "data_parallel"])
def test_a_batch_repeated_is_as_many_runs_of_its_lists(name):
    schedule = build(name, 4, 8)
    run = GeneratedRun(repeat(lower(schedule), 3)).run()
    again = GeneratedRun(repeat(schedule, 3)).run()
    assert_equal(again.parameters, run.parameters, relative=1e-15)
    expected = Local(schedule, run.model, optimizer="momentum", lr=0.02)
    data = make_batch(run.model, 24, 2, seed=0, dtype=torch.float64, device=CPU)
    for batch in range(3):
        cut = slice(8 * batch, 8 * batch + 8)
        run_local(expected.ranks, Batch(data.inputs[cut], data.targets[cut]))
    assert_equal(run.parameters, expected.parameters)
    assert run.stage(0).losses() == {}


def test_a_run_can_be_run_again():
    run = GeneratedRun(build_generated("pipedream", 3, 6))
    expected = Local(build("pipedream", 3, 6), plain(3), optimizer="momentum", lr=0.02)
    for _ in range(2):
        run.run()
        expected.run()
    assert_equal(run.parameters, expected.parameters, relative=1e-15)


@pytest.mark.parametrize(
    "lists",
    [
        build_generated("1f1b_rr", 3, 10**6),
        repeat(build("1f1b", 3, 4), 10**5),
    ],
    ids=lambda lists: lists.name,
)
def test_a_run_of_a_million_micro_batches_holds_no_more_than_a_short_one(lists):
    held = {}

    def on_loss(microbatch, output, target, loss):
        if microbatch in (100, 400):
            gc.collect()
            held[microbatch] = len(gc.get_objects())
        if microbatch == 400:
            raise RunEnded

    with pytest.raises(RunEnded):
        GeneratedRun(lists, on_loss=on_loss).run(Batch(Endless(), Endless()))
    assert abs(held[400] - held[100]) < 1000  # 300 micro-batches on three ranks have 1800 ops at the least


def test_a_listener_that_fails_is_named_with_its_op():
    def on_loss(*heard):
        raise ValueError("no more")

    with pytest.raises(ExecutionError, match=r"rank 1 failed at 1F0 \(micro-batch 0\): no more"):
        GeneratedRun(build_generated("pipedream", 2, 4), on_loss=on_loss).run()


@pytest.mark.parametrize("name", [*SCHEMES, *SYNCHRONOUS])
def test_both_kinds_of_lists_answer_the_same(name):
    in_memory = lower(build(name, 4, 24))
    made = build_generated(name, 4, 24) if find(name).build_generated else repeat(in_memory, 1)
    assert channels(made) == channels(in_memory)
    assert channels(in_memory) == sorted(
        {(r, op.peer) for r, ops in enumerate(in_memory.ops) for op in ops if isinstance(op, Send)}
    )
    assert made.reducers == in_memory.reducers
    for rank in range(in_memory.num_ranks):
        assert made.stages_on(rank) == in_memory.stages_on(rank) == stages_of(in_memory.ops[rank])
        for stage in made.stages_on(rank):
            assert list(step_sizes(made, rank, stage)) == list(step_sizes(in_memory, rank, stage))


def test_the_lists_of_several_ranks_are_begun_together_and_anew():
    in_memory = lower(build("pipedream", 3, 6))
    lists = lists_of(build_generated("pipedream", 3, 6), range(3))
    for _ in range(2):
        together = [iter(lists[rank]) for rank in range(3)]
        rows = [[] for _ in range(3)]
        for turn in count():
            op = next(together[turn % 3], None)
            if op is not None:
                rows[turn % 3].append(op)
            elif [len(row) for row in rows] == [len(row) for row in in_memory.ops]:
                break
        assert [tuple(row) for row in rows] == list(in_memory.ops)


def test_replicas_that_step_in_rounds_take_the_mean_of_their_own_rounds():
    schedule = build("1f1b_rr", 6, 12, replicas=(3, 2, 1))
    assert loss_scales(schedule) is None
    assert loss_scales(build("1f1b_rr", 4, 12, replicas=(2, 2))) == dict.fromkeys(range(12), 1 / 2)
    assert [set(step_sizes(schedule, rank, k)) for rank, k in enumerate((0, 0, 0, 1, 1, 2))] == [
        {3}, {3}, {3}, {2}, {2}, {1}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"), [("1f1b", True), ("zb_h1", True), ("pipedream", False), ("wpipe", False)]
)
def test_every_op_reads_the_newest_weights_only_where_steps_end_a_batch_that_is_repeated(name, expected):
    lists = training_run(name, 2, 4, 6).lists(6)
    assert [is_flushed(lists, rank, rank) for rank in range(2)] == [expected] * 2
