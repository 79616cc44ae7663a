"""The tables and figures of AvgPipe: elastic averaging for efficient pipelined DNN training, PPoPP 2023."""

from __future__ import annotations

from paper_rows.avgpipe import schedules, training_time, tuning
from paper_rows.avgpipe.statistical import repeat_statistics
from paper_rows.avgpipe.utilisation import repeat_over_time, repeat_peak
from paper_rows.figure import Figure, Paper, drawing

PAPER = Paper(
    "avgpipe",
    "AvgPipe: elastic averaging for pipelined training, PPoPP 2023",
    "The paper has three nodes of two V100 (SXM2, 32 GB) on 1 Gb/s Ethernet. All times here are simulated on this "
    "cluster, with NVLink inside a node and one network interface for both GPUs. GNMT has PipeDream's measured "
    "layers, scaled to other micro-batches by an estimate of LSTM kernels; BERT and AWD are estimated from their "
    "shapes in float32. The paper states neither the size of BERT nor its tokens: BERT-large with 256 tokens is the "
    "one that takes the printed 50 GB under data parallelism; it was chosen for that after 128 tokens took 40 GB. "
    "Stages are cut as in PipeDream, one GPU each. The baselines have as many micro-batches as GPUs; PipeDream's is "
    "the whole batch. Results are steady states. They have no seeds: tables below the rows show ranges over the "
    "unstated assumptions.",
    (
        drawing("Fig. 1", "Pipeline parallelism slices a batch into micro-batches", "`pipesched gantt -s gpipe`."),
        Figure("Fig. 2", "GPUs idle, and their peak utilisation is about 60 % for BERT", repeat_peak),
        drawing("Fig. 3", "Larger batches, or several versions, shorten bubbles", "Schedules `gpipe` and `pipedream`."),
        drawing("Fig. 4", "Parallel pipelines with elastic averaging", "Schedule `avgpipe`."),
        drawing("Fig. 5", "An elastic force pulls models to their centre", "`executor/core/elastic_averager.py`."),
        drawing(
            "Fig. 6",
            "Steps of a pipeline and of the reference model",
            "`pipesched run -s avgpipe`; docs/decisions/0022-elastic-averaging.md proves the reference is the mean.",
        ),
        Figure("Fig. 7", "Advance forward propagation: as fast as AFAB, 3/8 of its memory", schedules.repeat_example),
        Figure("Algorithm 1", "Raise the advance while batches get faster", schedules.repeat_algorithm),
        Figure("Fig. 8", "Eq. 2 predicts computation from the curve of utilisation", tuning.repeat_computation),
        Figure("Fig. 9", "Eq. 3 predicts the communication that blocks a GPU", tuning.repeat_communication),
        drawing("Fig. 10", "Partitioner, profiler, predictor, scheduler, runtime", "docs/design.md maps these parts."),
        Figure("Fig. 11", "4.7 x over data parallelism, 1.7 x over pipelines", training_time.repeat_overall),
        Figure("Fig. 11 GNMT", "Training time of GNMT in the memory of each baseline", training_time.repeat_gnmt),
        Figure("Fig. 11 BERT", "Training time of BERT", training_time.repeat_bert),
        Figure("Fig. 11 AWD", "Training time of AWD", training_time.repeat_awd),
        Figure("Fig. 12", "AvgPipe needs no more memory than the baselines", training_time.repeat_memory),
        Figure("Fig. 13", "AvgPipe raises the mean utilisation", training_time.repeat_utilisation),
        Figure("Fig. 14", "Elastic averaging costs no epochs", repeat_statistics),
        Figure("Fig. 15", "Larger batches help AvgPipe, not GPipe", training_time.repeat_batches),
        Figure("Fig. 16", "Parallel pipelines raise the peak utilisation", repeat_over_time),
        Figure("Fig. 17 GNMT", "Schedules for GNMT: AFAB, 1F1B, advance", schedules.repeat_gnmt),
        Figure("Fig. 17 BERT", "Schedules for BERT", schedules.repeat_bert),
        Figure("Fig. 18", "Tuning by a profile takes minutes, traversal hours", tuning.repeat_costs),
        Figure("Fig. 19", "The profile finds nearly the best setting", tuning.repeat_choices),
    ),
)
