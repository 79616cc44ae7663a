"""Ranks on streams of one process: no op reads a tensor before the stream that writes to it, and sums are the same."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random

import pytest
import torch

from pipesched.executor import RankFailed
from pipesched.executor.core import Batch, CudaStreams
from pipesched.executor.runs import local_ranks, run_local
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Phase
from pipesched.schedules.transforms import recompute, replicate
from tests.executor import models, tuple_models
from tests.executor.pipelines import Local, any_schedule
from tests.executor.race_detector import HERE, RaceDetector, RaceError, RacingStreams
from tests.executor.random_lists import SmallStage, random_schedule

ONE_DEVICE = torch.device("cpu")


def raced(run, devices=lambda rank: HERE, streams=RacingStreams, times=2):
    """Run the lists of `run` on streams; return the detector."""
    detector = RaceDetector()
    own = {rank.rank: streams(detector, devices(rank.rank)) for rank in run.ranks}
    built = {rank.rank: rank.stages for rank in run.ranks}
    ranks = local_ranks(run.schedule, built.__getitem__, run.averaging, streams=own)
    with detector:
        for _ in range(times):
            run_local(ranks, run.batch)
    return detector


def pair(name, averaging="asynchronous"):
    """Return two equal runs of a schedule of the catalogue."""
    schedule = any_schedule(name, 2, 0)
    model = models.plain(max(4, schedule.num_stages))
    return [Local(schedule, model, optimizer="momentum", averaging=averaging) for _ in range(2)]


def require_equal(plain, streamed):
    plain.run(2)
    detector = raced(streamed)
    assert detector.num_ops > 50
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters, streamed.parameters, strict=True))


@pytest.mark.parametrize(
    ("name", "averaging"),
    [
        *((name, "asynchronous") for name in CATALOGUE),
        *((name, "synchronous") for name, entry in CATALOGUE.items() if entry.traits.averages),
    ],
)
def test_every_schedule_runs_without_a_race_and_gives_the_same_weights(name, averaging):
    require_equal(*pair(name, averaging))


TRANSFORMED = {
    "late recompute": (recompute(build("1f1b", 2, 4), None, "late"), models.plain),
    "recompute, chunks": (recompute(build("interleaved", 2, 4)), models.plain),
    "recompute, replicas": (replicate(recompute(build("gpipe", 2, 4)), 2), models.plain),
    "replicas, split backward": (replicate(build("zb_h1", 2, 4), 2), models.plain),
    "recompute, tuples": (recompute(build("1f1b", 2, 4)), tuple_models.mixed),
    "split backward, tuples": (recompute(build("zb_h1", 2, 4)), tuple_models.mixed),
}


@pytest.mark.parametrize("case", TRANSFORMED)
def test_recomputation_replicas_and_messages_of_several_tensors_run_without_a_race(case):
    schedule, model = TRANSFORMED[case]
    require_equal(*(Local(schedule, model(layers=4), optimizer="momentum") for _ in range(2)))


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 4))])
def test_random_orders_run_without_a_race(part):
    for seed in range(80 * part, 80 * part + 80):
        chance = Random(seed)
        num_ranks, chunks = chance.choice([2, 2, 3]), chance.choice([1, 1, 2])
        drawn = random_schedule(chance, num_ranks, chance.randint(1, 3), chunks)
        batch = Batch([torch.ones(4) * (1 + i) for i in range(drawn.num_microbatches)], [None] * drawn.num_microbatches)
        runs = []
        for is_streamed in (False, True):
            schedule = lower(drawn)
            detector = RaceDetector()
            stages = [
                {s: SmallStage(s, drawn.num_stages) for s in range(rank, drawn.num_stages, num_ranks)}
                for rank in range(num_ranks)
            ]
            own = {rank: RacingStreams(detector, chance.choice([HERE, ONE_DEVICE])) for rank in range(num_ranks)}
            ranks = list(local_ranks(schedule, stages.__getitem__, streams=own if is_streamed else None))
            chance.shuffle(ranks)
            if is_streamed:
                with detector:
                    run_local(ranks, batch)
            else:
                run_local(ranks, batch)
            runs.append(torch.stack([stages[s % num_ranks][s].weight for s in range(drawn.num_stages)]))
        assert torch.equal(*runs)


def test_no_rank_launches_far_ahead_of_the_next_one():
    """A message leaves at the turn behind its forward: so the next rank is two forwards behind, and not all of them."""
    num_ranks = 3
    detector, launched = RaceDetector(), [0] * num_ranks
    run = Local(build("gpipe", num_ranks, 16), models.plain(num_ranks))

    def at(rank, index, op):
        launched[rank] += isinstance(op, Compute) and op.phase is Phase.FORWARD
        ahead = [before - after for before, after in pairwise(launched)]
        assert max(ahead) <= 2, launched

    own = {rank: RacingStreams(detector) for rank in range(num_ranks)}
    built = {rank.rank: rank.stages for rank in run.ranks}
    with detector:
        ranks = local_ranks(run.schedule, built.__getitem__, streams=own)
        run_local([replace(rank, at=partial(at, rank.rank)) for rank in ranks], run.batch)
    assert launched == [16] * num_ranks


class _Blind(RacingStreams):
    def wait(self, event, whom):
        """Wait for nothing."""


class _Hasty(RacingStreams):
    def record(self):
        return self._cuda.Event()


class _Forgetful(RacingStreams):
    def _keep(self, tensor, stream):
        """Tell the allocator nothing."""


class _Unsynchronized(RacingStreams):
    def synchronize(self):
        """Let the first op begin before the weights are there."""


@pytest.mark.parametrize("streams", [_Blind, _Hasty, _Forgetful, _Unsynchronized])
@pytest.mark.parametrize("device", [HERE, ONE_DEVICE])
def test_the_detector_finds_a_wait_or_a_lifetime_that_is_missing(streams, device):
    for name in ("1f1b", "avgpipe"):
        with pytest.raises((RaceError, RankFailed), match=r"does not wait for an op of another stream|is freed while"):
            raced(pair(name)[1], lambda rank: device, streams)


def test_messages_are_copied_beside_the_ops_of_both_ranks():
    """A copy waits for its own message alone: with the ops of both ranks left out, it is behind nothing else."""
    detector = RaceDetector()
    receiver, sender = RacingStreams(detector), RacingStreams(detector)
    with detector:
        with sender.turn():
            sent = torch.ones(3)
            ready = sender.record()
            later = torch.ones(3) * 2
        with receiver.turn():
            own = torch.ones(3) * 3
            copy, done = receiver.fetch(sent, ready, 1)
        assert receiver._stream not in done.clock
        assert done.clock[sender._stream] == ready.clock[sender._stream] < sender._stream.clock[sender._stream]
        with receiver.turn():
            receiver.wait(done, 1)
            assert torch.equal(copy + own, torch.full((3,), 4.0))
    assert later.sum() == 6


def test_the_streams_of_a_gpu_are_those_of_torch():
    """Each function of torch.cuda that the streams call takes the parameters that they give."""
    device = torch.device("cuda", 0)
    for function, given in (
        (torch.cuda.Stream.__new__, (torch.cuda.Stream, device)),
        (torch.cuda.Event.__new__, (torch.cuda.Event,)),
        (torch.cuda.Event.record, (None, None)),
        (torch.cuda.Stream.wait_event, (None, None)),
        (torch.cuda.stream, (None,)),
        (torch.cuda.synchronize, (device,)),
    ):
        assert inspect.signature(function).bind(*given)
    assert inspect.signature(CudaStreams).bind(device).arguments == {"device": device}
