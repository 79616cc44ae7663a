"""The tables and figures of PipeDream: generalized pipeline parallelism, SOSP 2019."""

from __future__ import annotations

from paper_rows.figure import Figure, Paper, drawing, not_run
from paper_rows.pipedream.evaluation import (
    repeat_bytes,
    repeat_footprints,
    repeat_half_precision,
    repeat_in_flight,
    repeat_other_techniques,
    repeat_prediction,
)
from paper_rows.pipedream.layouts import repeat_layouts
from paper_rows.pipedream.speedups import repeat_gpipe, repeat_model_parallelism, repeat_speedups
from paper_rows.pipedream.stalls import repeat_stalls
from paper_rows.pipedream.timelines import repeat_flushes, repeat_naive, repeat_replicas, repeat_stashes, repeat_steady

PAPER = Paper(
    "pipedream",
    "PipeDream: generalized pipeline parallelism, SOSP 2019",
    "The introduction and the background of the paper were at hand; they print the largest speed-ups over data "
    "parallelism (5.3, 3.1, 4.3 and 3). The numbers of Table 1 and the claims of Table 2 and later, and of Fig. 5 and "
    "later, are known from the publication and were not checked against its text; the largest speed-ups agree with the "
    "introduction. Numbers of these figures are not known. "
    "Layer times, activations and weights are PipeDream's own profiles of VGG-16, ResNet-50, AlexNet and GNMT-8; "
    "GNMT-16, AWD-LM and S2VT have no profile here. Batches follow PipeDream's published configurations (64 "
    "images of VGG-16, whose profile has 128). GNMT's profile has 32 samples if its hidden states are float32, 64 if "
    "float16; the configuration has 64, so times count once or twice. Cluster A: four V100 per server over PCIe (10 "
    "GB/s supposed), 10 Gb/s between servers. Cluster B: eight V100 with NVLink, 25 Gb/s. Data parallelism sums "
    "buckets of 25 MB while earlier layers still run backward, as PyTorch does. The share of the line rate that an "
    "all-reduce reaches is not stated: results are ranges over 1, 0.5, 0.35 and 0.2.",
    (
        Figure(
            "Fig. 1",
            "Data parallelism on 32 GPUs stalls up to 90 % of the time; it spikes between servers, rises with GPUs and "
            "their speed, and is least for ResNet-50",
            repeat_stalls,
        ),
        Figure("Fig. 2", "Model parallelism: one of four workers is active at a time", repeat_naive),
        Figure("Fig. 3", "GPipe idles at every flush: 3 / 7 with four workers and four micro-batches", repeat_flushes),
        Figure("Fig. 4", "1F1B: no stalls in steady state, though B takes twice as long as F", repeat_steady),
        drawing("Fig. 5", "Four stages, and messages beside a stage's computation", "`pipesched gantt pipedream`."),
        drawing("Fig. 6", "Profiler, optimizer and runtime", "`pipesched profile`, `partition` and `run`."),
        drawing("Fig. 7", "A topology of two levels", "`--machine`, and `of_nodes` of the library."),
        Figure("Fig. 8", "1F1B-RR: two replicas of a stage of twice the time, one of the next", repeat_replicas),
        Figure("Fig. 9", "Weight stashing: four workers hold 4, 3, 2 and 1 versions", repeat_stashes),
        Figure("Table 1", "Speed-up over data parallelism, with the published layouts", repeat_speedups),
        Figure("Table 1 layouts", "The optimizer's layouts", repeat_layouts),
        Figure("Section 1 models", "2.6 to 15 times faster than model parallelism", repeat_model_parallelism),
        Figure("Section 1 GPipe", "1.7 times faster than pipelining with flushes", repeat_gpipe),
        not_run(
            "Table 1 accuracy",
            "Weight stashing needs as many epochs as data parallelism",
            "VGG-16 on A: 5.28 x in time to accuracy, as in time per epoch",
            "Training to 68 % on ImageNet is out of reach. `python benchmarks/convergence.py` trains PipeDream's "
            "schedule beside un-pipelined training on digits and on text.",
        ),
        drawing("Table 2", "GPUs, interfaces and links of the servers", "Clusters A and B above."),
        not_run(
            "Table 3",
            "Epochs of data parallelism take longer on public clouds than on the clusters of MLPerf",
            "longer for GNMT-8, SSD and Mask R-CNN",
            "SSD and Mask R-CNN have no profile here, and times of MLPerf's clusters are measurements.",
        ),
        not_run(
            "Fig. 10",
            "VGG-16 reaches its accuracy earlier on 16 GPUs, cluster A and B",
            "curves of accuracy over time",
            "Training VGG-16 on ImageNet is out of reach.",
        ),
        not_run(
            "Fig. 11",
            "Accuracy over epochs equals data parallelism's, GNMT-16 and VGG-16",
            "curves of accuracy over epochs",
            "Training on ImageNet and WMT16 is out of reach; `python benchmarks/convergence.py` has stand-ins.",
        ),
        Figure("Fig. 12", "Data parallelism of GNMT-8 stalls more in half precision", repeat_half_precision),
        not_run(
            "Fig. 13",
            "Large mini-batches of VGG-16 with LARS lose accuracy or epochs",
            "curves of accuracy over epochs",
            "Training VGG-16 on ImageNet is out of reach.",
        ),
        Figure("Fig. 14", "Faster than model and hybrid parallelism on four GPUs", repeat_other_techniques),
        Figure("Fig. 15", "The optimizer's prediction follows measured throughput", repeat_prediction),
        Figure("Fig. 16", "PipeDream needs about the memory of data parallelism", repeat_footprints),
        Figure("Fig. 17", "A pipeline sends fewer bytes than data parallelism, except of ResNet-50", repeat_bytes),
        Figure("Fig. 18", "More mini-batches in flight: faster, with more memory, up to NOAM", repeat_in_flight),
    ),
)
