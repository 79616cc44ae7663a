"""The links between processes of this machine, measured by ping-pong and in runs.

Ping-pong shows how links differ. Messages cost more on ranks that compute, whose cores are busy and whose caches are
full of other data. Runs of a small model by our own executor, one for each size, measure this cost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, TypeVar

from pipesched.executor import RankFailed, launch
from pipesched.profiles import FLOAT32_BYTES, Carrier
from pipesched.profiles.clusters import Cluster, LoadedLinkFit, LoadedMessages, fit_loaded_link, under_load
from pipesched.profiles.costs import samples_of
from pipesched.profiles.io import load_cluster, save_json
from pipesched.questions import LinkSettings, MeasureSettings, NumRanks
from pipesched.schedules.builders import build
from pipesched.schedules.common import Counts, Description, tuple_of
from pipesched.simulator import views
from pipesched.simulator.analysis import readable_bytes, readable_s
from pipesched.workflows import MAX_INT64, Result, Table, asks, require_path
from pipesched.workflows.arguments import require_gpu
from pipesched.workflows.measuring.run_specs import modelled_spec
from pipesched.workflows.measuring.running import measured

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

T = TypeVar("T")

_POLL_S = 0.02

_SIZES_BYTES = (1024, 16 * 1024, 128 * 1024, 1024**2)
_RUNS = 3
"""Runs of each size, because the other load of the machine differs between runs."""
_WIDTH = 64
_LAYERS = 24
"""Most layers of the second rank, which has a quarter of the model.

The first rank has three quarters, so the second waits for every activation: the wait gives the time of a message on its
way. Gradients arrive before the first rank asks for them, which gives the cost of taking a message.
"""


@dataclass(frozen=True, slots=True, repr=False)
class LinkMeasurement(Result):
    """Measured links.

    Attributes:
        cluster: A device per rank, with the measured links between them, for `simulate` and others.
        fit: Fit of the cost of messages between ranks that compute; None if only idle ranks were measured.
        samples: Samples for the fit of the link, by size.
        slowdowns: For the size of each sample, the relative slowdown of two ranks' ops by a message in flight.
    """

    cluster: Cluster
    fit: LoadedLinkFit | None
    samples: tuple[LoadedMessages, ...]
    slowdowns: tuple[float, ...] = ()

    def __repr__(self) -> str:
        link, ranks = self.cluster.link(0, 1), len(self.cluster.devices)
        return (
            f"LinkMeasurement(ranks={ranks}, latency_s={link.latency_s:.4g}, "
            f"bandwidth_bytes_per_s={link.bandwidth_bytes_per_s:.4g})"
        )

    def save(self, path: str | Path) -> None:
        """Write the cluster as JSON.

        Raises:
            ArgumentError: `path` is no name of a file.
            ProfileError: The file cannot be written.
        """
        save_json(self.cluster, require_path(path))

    def to_frame(self) -> pd.DataFrame:
        """Return a row per pair of ranks, with the fields of the link from the first to the second."""
        import pandas as pd

        pairs = permutations(range(len(self.cluster.devices)), 2)
        return pd.DataFrame({"from": a, "to": b, **asdict(self.cluster.link(a, b))} for a, b in pairs)

    def plot(self) -> Figure:
        """Draw the times of a message from the first rank to the second, by its size."""
        link, sizes = self.cluster.link(0, 1), [sample.num_bytes for sample in self.samples] or _SIZES_BYTES
        return views.cost_figure(
            self.cluster.origin,
            "message",
            list(map(readable_bytes, sizes)),
            {
                "a Send keeps its rank": list(map(link.sending_s, sizes)),
                "on its way": list(map(link.transfer_s, sizes)),
                "taking it": list(map(link.receiving_s, sizes)),
            },
        )

    def table(self) -> Table:
        """Return the measurements of each size, and the fit below, formatted for people."""
        if self.fit is None:
            link = self.cluster.intra
            text = f"idle ranks: {_readable_line(link.latency_s, 1 / link.bandwidth_bytes_per_s)}"
            return Table("", (), f"{text}; the overhead of messages on ranks that compute was not measured")
        rows = tuple(
            {
                "message": readable_bytes(sample.num_bytes),
                "a Send": readable_s(sample.send_s),
                "a Recv": readable_s(sample.post_s),
                "taking it": readable_s(sample.receive_s),
                "Send to use": readable_s(sample.passage_s),
                "between ops": readable_s(sample.op_s),
                "slows ops": f"{slowdown:.0%}",
            }
            for sample, slowdown in zip(self.samples, self.slowdowns, strict=True)
        )
        link, off = self.fit.link, self.fit.residuals
        lines = [
            f"send     {_readable_line(link.send_s, link.send_s_per_byte)} ({off['send']:.0%} off at most)",
            f"post     {readable_s(link.post_s)} ({off['post']:.0%} off at most)",
            f"receive  {_readable_line(link.receive_s, link.receive_s_per_byte)} ({off['receive']:.0%} off at most)",
            f"link     {_readable_line(link.latency_s, 1 / link.bandwidth_bytes_per_s)} "
            f"(with send and receive {off['passage']:.0%} off at most)",
            f"op       {readable_s(self.fit.op_s)}",
            "slowdown of ops beside a message in flight: not in the file; `--slowdown 0.2` simulates 20 %",
        ]
        return Table(
            "messages between two ranks that compute: time that a rank spends on them (medians)",
            rows,
            "\n".join(lines),
        )


def _readable_line(constant_s: float, per_byte_s: float) -> str:
    return f"{readable_s(constant_s)} + {readable_s(per_byte_s * 1024**2)} per MiB"


@dataclass(frozen=True)
class LinksQuestion(LinkSettings):
    """The question of `profile_links`; its fields are the arguments of that function."""

    num_ranks: NumRanks = 2
    sizes_bytes: Annotated[
        Counts | None,
        Description(
            "Sizes of the messages [bytes] (default: 1 KiB to 4 MiB). Ranks that compute send only sizes from 1 KiB to "
            "4 MiB.",
            least=1,
            most=MAX_INT64,
        ),
    ] = field(default=None, kw_only=True)


@asks(LinksQuestion)
def profile_links(question: LinksQuestion) -> LinkMeasurement:
    """Measure the link of every pair of ranks, one process each on this machine.

    Links are measured by ping-pong. Over gloo, messages between ranks that compute are measured too.

    Raises:
        ArgumentError: A name is unknown, a number is too small, or NCCL has no GPU.
        RankFailed: A rank failed; the message is the error of that rank.
    """
    if question.backend == "nccl":
        require_gpu("backend: got nccl", "`backend=gloo`")
    repeats = question.repeats
    sizes_bytes = None if question.sizes_bytes is None else tuple_of(question.sizes_bytes)
    sizes = () if sizes_bytes is None else ("--sizes", *map(str, sizes_bytes))
    words = ("--repeats", str(repeats), *sizes)
    cluster = _measured_by_processes(question.num_ranks, question.backend, words, load_cluster)
    if question.backend != "gloo":
        return LinkMeasurement(cluster, None, ())
    asked = sorted({size for size in sizes_bytes or () if _SIZES_BYTES[0] <= size <= 4 * 1024**2})
    samples = tuple(_in_a_run(size, repeats) for size in (asked if len(asked) > 1 else _SIZES_BYTES))
    fit = fit_loaded_link(samples)
    words = ("--slowdown", "--repeats", str(_RUNS), "--sizes", *(str(sample.num_bytes) for sample in samples))
    slowdowns = tuple(_measured_by_processes(2, "gloo", words, lambda path: json.loads(path.read_text())))
    loaded = under_load(cluster, fit)
    origin = f"{cluster.origin}; and messages of {len(samples)} sizes in runs of two ranks that compute"
    return LinkMeasurement(replace(loaded, origin=origin), fit, samples, slowdowns)


def _in_a_run(num_bytes: int, repeats: int) -> LoadedMessages:
    """Return the times of messages of about `num_bytes` in a run of a small model."""
    size = max(1, num_bytes // (_WIDTH * FLOAT32_BYTES))
    schedule = build("1f1b", 2, min(64, max(8, repeats)))
    # ops of a millisecond or two at every size: the caches that they leave decide the cost of a post
    quarter = max(1, round(_LAYERS / (1 + num_bytes / 32768)))
    bounds = ((0, 3 * quarter), (3 * quarter, 4 * quarter))
    model = f"mlp:width={_WIDTH},layers={4 * quarter}"
    spec = modelled_spec(schedule, model, bounds, size, MeasureSettings(iterations=1, warmup=2))
    own = samples_of([measured(spec).timeline for _ in range(_RUNS)], ["a run"] * _RUNS)
    send_s = _median_s(own.hand_over.get("Send", ()))
    return LoadedMessages(
        size * _WIDTH * FLOAT32_BYTES,
        send_s,
        _median_s(own.hand_over.get("Recv", ())),
        _median_s(own.hand_over.get("Take", ())),
        send_s + max(0.0, _median_s(own.messages)),
        _median_s(own.hand_over.get("Op", ())),
    )


def _median_s(seconds: Sequence[float]) -> float:
    """Return the median, at least a nanosecond, the resolution of the clock."""
    return max(1e-9, median(seconds or [0.0]))


def _measured_by_processes(num_ranks: int, backend: Carrier, words: Sequence[str], read: Callable[[Path], T]) -> T:
    """Return the result of the link profiler's processes.

    Raises:
        RankFailed: A process failed; the message is the error of that process.
    """
    with launch.job_folder() as folder:
        out = folder / "measured.json"
        words = ["--backend", backend, *words, "--out", str(out), "--meet", f"file://{folder.absolute()}/store"]
        module = "pipesched.profiles.measuring.link_profiler"
        with launch.started(num_ranks, module, words, folder, is_fresh=backend == "nccl") as processes:
            codes = [process.poll() for process in processes]
            while None in codes and not any(codes):
                time.sleep(_POLL_S)
                codes = [process.poll() for process in processes]
        if not any(codes):
            return read(out)
        logs = [folder / f"log{rank}" for rank, code in enumerate(codes) if code]
        lines = "\n".join(log.read_text(errors="replace") for log in logs if log.exists()).splitlines()
    said = next((line for line in lines if line.startswith("links:")), lines[-1] if lines else "profile-links failed")
    raise RankFailed(said)
