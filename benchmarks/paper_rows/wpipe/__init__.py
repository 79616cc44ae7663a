"""The tables and figures of WPipe: group-based interleaved pipeline parallelism, ICLR 2022."""

from __future__ import annotations

from paper_rows.figure import Figure, Paper, drawing, not_run
from paper_rows.wpipe.memory import repeat_largest_batches, repeat_memory
from paper_rows.wpipe.messages import repeat_compressed, repeat_compression, repeat_depths, repeat_placements
from paper_rows.wpipe.models import RESNEXT_SLOWNESS
from paper_rows.wpipe.schedules import (
    repeat_grouping,
    repeat_overlap,
    repeat_table,
    repeat_timelines,
    repeat_versions,
)
from paper_rows.wpipe.throughput import repeat_models, repeat_over_2bw, repeat_over_others, repeat_shallow
from paper_rows.wpipe.training import repeat_accuracy, repeat_compressed_accuracy, repeat_losses

PAPER = Paper(
    "wpipe",
    "WPipe: group-based interleaved pipeline parallelism, ICLR 2022",
    "Env-1 is a node of eight V100 of 16 GB, Env-2 eight of them (25 Gb/s Ethernet, NVLink of 300 GB/s as printed). "
    "BERT has width 768 and 128 tokens, ResNeXt has 32 groups of width 4. Their seconds are estimates of "
    "`profiles/inside_stage`, in which small micro-batches lose efficiency and are bound by launches; ResNeXt's are "
    f"{RESNEXT_SLOWNESS:.2f} times the estimate, which makes the paper's 607.8 samples/s of Table 3. The paper states "
    "neither number type nor optimizer of its throughput: ranges are over float32 with momentum or Adam, and float16 "
    "with Adam. Searches try every d : w, power of two of M, recomputation and placement of a batch, as in its "
    "Equation 3, within 16 GB.",
    (
        drawing("Fig. 1", "Inter-layer model parallelism and a naive pipeline", "`pipesched gantt naive -p 2`."),
        Figure("Fig. 2", "GPipe and PipeDream-flush idle at flushes, PipeDream and 2BW never", repeat_timelines),
        drawing("Fig. 3", "Idle blocks between the periods of 2BW", "The lists of `1f1b`, with a Step per period."),
        drawing("Fig. 4", "Derivation of WPipe's order", "`schedules/builders/wpipe.py` builds it from pairs."),
        Figure("Table 1", "Bubble, weight buffers and activations of four pipelines", repeat_table),
        Figure("Fig. 5", "Only G0 needs two versions; no bubble once the pipeline is full", repeat_versions),
        drawing("Fig. 6", "Layouts d x w of pipelines and their copies", "`pipesched plan` searches them."),
        Figure("Table 2", "WPipe and 2BW reach the final accuracy of data parallelism", repeat_accuracy),
        Figure("Fig. 7", "WPipe's loss falls faster than 2BW's, and slower than data parallelism's", repeat_losses),
        Figure("Fig. 8a-d 2BW", "1.4 times 2BW for Bert768 at a batch of 2^9 on 64 GPUs", repeat_over_2bw),
        Figure("Fig. 8a-d others", "Times GPipe and PipeDream, eight GPUs", repeat_over_others),
        Figure("Fig. 8d", "WPipe fits a convolutional network in a shallower pipeline than 2BW", repeat_shallow),
        Figure("Fig. 8e", "Recomputation enlarges the batch, WPipe's more than 2BW's", repeat_largest_batches),
        Figure("Fig. 8f", "ResNeXt500 is faster with shallower pipelines", repeat_depths),
        Figure("Table 3", "ResNeXt500 is faster with pipelines inside the nodes", repeat_placements),
        Figure("Fig. 9", "WPipe-R needs less memory than 2BW-R, Bert96 as 8:1", repeat_memory),
        not_run(
            "Fig. 10",
            "BERT from scratch: WPipe and data parallelism converge, 2BW does not",
            "curves of loss and F1",
            "Training BERT from scratch is out of reach; the network of Fig. 7 learns under 2BW.",
        ),
        Figure("Fig. 11a-d", "More acceleration over 2BW for BERT than for ResNeXt", repeat_models),
        Figure(
            "Fig. 11e-f",
            "Compressed messages gain for ResNeXt, and for BERT at large batches",
            repeat_compressed,
        ),
        drawing("Fig. 12", "A message in half precision with its scale", "`Compression`, option `--compression half`."),
        Figure("Table 4", "Compressed messages make ResNeXt500 faster in placement A", repeat_compression),
        Figure("Table 5", "Compressed messages lose 0.1 % of accuracy at most", repeat_compressed_accuracy),
        Figure("Fig. 13", "Recomputation runs beside the messages", repeat_overlap),
        drawing("Fig. 14", "Model partitions and pipeline stages", "`stage_to_rank` of the lists: stages k and N + k."),
        Figure("Fig. 15", "Grouping halves GPipe's bubble", repeat_grouping),
    ),
)
