"""The entries of the catalogue: every schedule's builder, parameters, names in other projects, and source."""

from __future__ import annotations

from collections.abc import Callable

from pipesched.schedules import PredictionRule, Schedule, ScheduleTraits
from pipesched.schedules.builders._held_builder import held_builder
from pipesched.schedules.builders.avgpipe import avgpipe
from pipesched.schedules.builders.catalogue_entry import Entry, InFlightRule, Parameter, SpecialCase
from pipesched.schedules.builders.chimera import chimera
from pipesched.schedules.builders.controllable_memory import v_half, v_min
from pipesched.schedules.builders.data_parallel import data_parallel
from pipesched.schedules.builders.dualpipe import dualpipe, dualpipe_v
from pipesched.schedules.builders.gems import gems
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.hanayo import hanayo
from pipesched.schedules.builders.interleaved import interleaved
from pipesched.schedules.builders.interleaved_zero_bubble import interleaved_zb
from pipesched.schedules.builders.looped_bfs import looped_bfs
from pipesched.schedules.builders.naive import naive
from pipesched.schedules.builders.one_f_one_b import one_f_one_b, one_f_one_b_afp
from pipesched.schedules.builders.one_f_one_b_rr import generated_one_f_one_b_rr
from pipesched.schedules.builders.pipedream import generated_pipedream, generated_pipedream_2bw
from pipesched.schedules.builders.stale_weights import generated_hybrid, generated_stale_weights, generated_vanilla_1f1b
from pipesched.schedules.builders.weight_prediction import generated_pipeoptim, generated_spectrain, generated_xpipe
from pipesched.schedules.builders.wpipe import generated_wpipe
from pipesched.schedules.builders.zbv import zbv
from pipesched.schedules.builders.zero_bubble import zb_h1, zb_h2
from pipesched.schedules.builders.zero_bubble_auto import zb_auto


def _asynchronous(
    name: str,
    build_generated: Callable[..., Schedule],
    text: str,
    source: str,
    *parameters: Parameter,
    aliases: tuple[str, ...] = (),
    chunks: int = 1,
    prediction: PredictionRule | None = None,
    in_flight: InFlightRule | None = None,
) -> Entry:
    return Entry(
        name,
        held_builder(build_generated),
        text,
        source,
        traits=ScheduleTraits(is_asynchronous=True, prediction=prediction),
        parameters=parameters,
        aliases=aliases,
        chunks=chunks,
        build_generated=build_generated,
        in_flight=in_flight,
    )


_ACCUMULATE = Parameter(
    "accumulate", None, "micro-batches per step, at least the number of ranks, which is the default", "integer"
)

ENTRIES = (
    Entry("naive", naive, "one micro-batch at a time through all stages", "model parallelism without a pipeline"),
    Entry(
        "gpipe",
        gpipe,
        "all forwards, then all backwards",
        "arXiv:1811.06965",
        aliases=("ScheduleGPipe",),
        in_flight=InFlightRule.ALL,
    ),
    Entry(
        "1f1b",
        one_f_one_b,
        "one forward, one backward, with a flush",
        "arXiv:2006.09503",
        aliases=("Schedule1F1B", "PipeDream-flush", "DAPPLE"),
        in_flight=InFlightRule.DEPTH,
        case_of=SpecialCase("avgpipe", {"pipelines": 1, "advance": 0}),
    ),
    Entry(
        "1f1b_afp",
        one_f_one_b_afp,
        "1f1b with advance forward propagation (AvgPipe)",
        "PPoPP 2023, section 4.2",
        parameters=(Parameter("advance", 1, "forwards run further ahead than in 1f1b, on every rank but the last"),),
        case_of=SpecialCase("avgpipe", {"pipelines": 1}),
    ),
    Entry(
        "avgpipe",
        avgpipe,
        "several pipelines of 1f1b_afp on the same devices, with a batch and an optimizer each, averaged elastically",
        "PPoPP 2023, doi:10.1145/3572848.3577484",
        traits=ScheduleTraits(averages=True, takes_plans=False),
        parameters=(
            Parameter("pipelines", 2, "parallel pipelines, each a copy of the model, that share the micro-batches"),
            Parameter("advance", 1, "forwards run further ahead than in 1f1b, on every rank but a pipeline's last"),
        ),
    ),
    Entry(
        "interleaved",
        interleaved,
        "1f1b with several chunks of the model per rank",
        "arXiv:2104.04473",
        traits=ScheduleTraits(takes_chunks=True),
        aliases=("Interleaved1F1B", "ScheduleInterleaved1F1B", "1F1B-interleaved", "interleaved-1F1B"),
        chunks=2,
    ),
    Entry(
        "looped_bfs",
        looped_bfs,
        "gpipe with several chunks of the model per rank, one after the other",
        "arXiv:2211.05953",
        traits=ScheduleTraits(takes_chunks=True),
        aliases=("LoopedBFS", "ScheduleLoopedBFS"),
        chunks=2,
    ),
    Entry(
        "zb_h1",
        zb_h1,
        "1f1b's memory and, where F, I and W are equal, a third of its bubble: the weights' share of B fills gaps",
        "arXiv:2401.10241, section 2.1",
        aliases=("ZB-H1",),
        in_flight=InFlightRule.DEPTH,
    ),
    Entry(
        "zb_h2",
        zb_h2,
        "nearly twice 1f1b's memory: where F, I and W are equal, no rank is idle between its first op and its last",
        "arXiv:2401.10241, section 2.2",
        aliases=("ZB-H2",),
    ),
    Entry(
        "zb_auto",
        zb_auto,
        "zero bubble, scheduled for given costs under a memory limit (ZB-1p, ZB-2p)",
        "arXiv:2401.10241, section 3.1",
        parameters=(
            Parameter("f", 1.0, "seconds of F; only ratios matter"),
            Parameter("i", 1.0, "seconds of I"),
            Parameter("w", 1.0, "seconds of W"),
            Parameter("c", 0.0, "seconds of a transfer"),
            Parameter("limit", None, "micro-batches in the memory of a rank; the number of ranks by default"),
            Parameter("kept", 1.0, "share of a micro-batch's memory that is kept from I to W"),
        ),
    ),
    Entry(
        "interleaved_zb",
        interleaved_zb,
        "zb_h1 with several chunks of the model per rank, as PyTorch orders it",
        "PyTorch 2.13, ScheduleInterleavedZeroBubble",
        traits=ScheduleTraits(takes_chunks=True),
        aliases=("InterleavedZeroBubble", "ScheduleInterleavedZeroBubble"),
        chunks=2,
    ),
    Entry(
        "dualpipe",
        dualpipe,
        "micro-batches from both ends at once, forwards overlapped with backwards; two replicas of every stage",
        "arXiv:2412.19437, section 3.2.1",
        chunks=2,
        replicas=2,
    ),
    Entry(
        "dualpipe_v",
        dualpipe_v,
        "dualpipe folded into a V: two stages per rank and no replicas",
        "arXiv:2412.19437; PyTorch's ScheduleDualPipeV",
        aliases=("DualPipeV", "ScheduleDualPipeV"),
        chunks=2,
    ),
    Entry(
        "data_parallel",
        data_parallel,
        "a replica of the whole model on every rank",
        "arXiv:2006.15704",
        traits=ScheduleTraits(takes_plans=False),
        aliases=("DDP",),
    ),
    Entry(
        "zbv",
        zbv,
        "zero bubble in a V: two chunks per rank, the memory of 1f1b",
        "arXiv:2401.10241, section 6",
        aliases=("ZB-V", "ZBVZeroBubble", "ScheduleZBVZeroBubble"),
        chunks=2,
    ),
    Entry(
        "v_half",
        v_half,
        "a V with half the activations of 1f1b",
        "arXiv:2405.15362, section 3",
        aliases=("V-Half",),
        chunks=2,
    ),
    Entry(
        "v_min",
        v_min,
        "a V with a third of the activations of 1f1b",
        "arXiv:2405.15362, section 3",
        aliases=("V-Min",),
        chunks=2,
    ),
    Entry(
        "chimera",
        chimera,
        "two pipelines in opposite directions, two replicas",
        "arXiv:2107.06925, section 3",
        chunks=2,
        replicas=2,
    ),
    Entry(
        "gems",
        gems,
        "two replicas that take turns, one micro-batch on a rank",
        "SC 2020, doi:10.1109/SC41405.2020.00049",
        chunks=2,
        replicas=2,
    ),
    Entry(
        "hanayo",
        hanayo,
        "waves over the ranks: work from both directions without replicas",
        "arXiv:2308.15762",
        parameters=(
            Parameter("waves", 2, "times that the stages go down the ranks and up again", multiplies_chunks=True),
        ),
        chunks=2,
    ),
    _asynchronous(
        "pipedream",
        generated_pipedream,
        "1f1b without a flush, weights stashed; a step per micro-batch",
        "arXiv:1806.03377",
        in_flight=InFlightRule.DEPTH,
    ),
    _asynchronous(
        "1f1b_rr",
        generated_one_f_one_b_rr,
        "pipedream with replicated stages, micro-batches in turn",
        "arXiv:1806.03377, section 3.2",
        Parameter("replicas", None, "ranks of each stage, as 2:1:1, which is the default", "integers"),
        aliases=("1F1B-RR",),
    ),
    _asynchronous(
        "pipedream_2bw",
        generated_pipedream_2bw,
        "1f1b without a flush, weights double-buffered",
        "arXiv:2006.09503, section 3.1",
        _ACCUMULATE,
        aliases=("PipeDream-2BW",),
        in_flight=InFlightRule.DEPTH,
    ),
    _asynchronous(
        "wpipe",
        generated_wpipe,
        "two groups of stages in turn, half the delay of pipedream_2bw",
        "ICLR 2022",
        _ACCUMULATE,
        chunks=2,
    ),
    _asynchronous(
        "vanilla_1f1b",
        generated_vanilla_1f1b,
        "1f1b without a flush, the newest weights always",
        "arXiv:1806.03377",
        in_flight=InFlightRule.DEPTH,
    ),
    _asynchronous(
        "stale_weights",
        generated_stale_weights,
        "pipelined backpropagation: twice as far ahead, the newest weights always",
        "arXiv:1912.12675, section 4.1",
    ),
    _asynchronous(
        "hybrid",
        generated_hybrid,
        "stale_weights first, then one micro-batch at a time",
        "arXiv:1912.12675, section 4.2",
        Parameter(
            "pipelined", None, "micro-batches that are pipelined; half of all by default", "integer", counts_run=True
        ),
    ),
    _asynchronous(
        "spectrain",
        generated_spectrain,
        "1f1b without a flush, F and B read weights predicted by momentum",
        "arXiv:1809.02839",
        prediction=PredictionRule.MOMENTUM,
    ),
    _asynchronous(
        "xpipe",
        generated_xpipe,
        "spectrain, predicted by Adam's rule for any optimizer",
        "arXiv:1911.04610",
        prediction=PredictionRule.ADAM,
    ),
    _asynchronous(
        "pipeoptim",
        generated_pipeoptim,
        "1f1b without a flush, F reads weights predicted by the optimizer's own rule",
        "arXiv:2312.00839",
        Parameter("extra", 0, "steps that F looks beyond its backward; 1 in the authors' code"),
        prediction=PredictionRule.OPTIMIZER,
    ),
)
