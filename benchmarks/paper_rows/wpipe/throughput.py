"""Fig. 8a to 8d and 11a to 11d: the fastest setting of each scheme within 16 GB, by layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from paper_rows.figure import Outcome, Verdict, range_verdict
from paper_rows.wpipe.models import MEMORY_BYTES, RESNEXT_BLOCKS, bert, convolutions
from paper_rows.wpipe.search import Best, Pipeline, ProfileOf, any_size, choices, fastest
from pipesched.profiles import OptimizerName
from pipesched.profiles.costs import MatmulPrecision, StageCosts

_TRAININGS: tuple[tuple[MatmulPrecision, OptimizerName], ...] = (
    ("float32", "momentum"),
    ("float32", "adam"),
    ("float16", "adam"),
)
"""Number types and optimizers: the paper states neither for its throughput."""


def _best(
    scheme: str,
    num_gpus: int,
    batch: int,
    profile_of: ProfileOf,
    depth: int | None = None,
    *,
    keeps_period: bool = False,
) -> Best | None:
    tried = (
        replace(choice, keeps_period=keeps_period)
        for choice in choices(scheme, num_gpus, batch)
        if depth in (None, choice.depth)
    )
    return fastest(tried, profile_of, MEMORY_BYTES)


@dataclass(frozen=True, slots=True)
class Pair:
    """WPipe beside another scheme in the same layout.

    Attributes:
        training: Number type and optimizer, or the model and the count of 2BW.
        layout: d : w.
        own: WPipe's best, or None if nothing fits.
        other: The other scheme's best.
    """

    training: str
    layout: str
    own: Best | None
    other: Best | None

    @property
    def ratio(self) -> float | None:
        """WPipe's throughput over the other."""
        return None if self.own is None or self.other is None else self.own.throughput / self.other.throughput


def repeat_over_2bw() -> Outcome:
    """Search Bert768 on 64 GPUs with a batch of 2^9, for each depth and over all depths."""
    pairs = []
    for precision, optimizer in _TRAININGS:
        profile_of = any_size(bert(768, precision, optimizer))
        for depth in (4, 8, 16, 32, 64):
            own, other = (_best(scheme, 64, 512, profile_of, depth) for scheme in ("wpipe", "pipedream_2bw"))
            pairs.append(Pair(f"{precision}, {optimizer}", f"{depth}:{64 // depth}", own, other))
    shallow = [pair.ratio for pair in pairs if pair.layout == "8:8" and pair.ratio is not None]
    deeper = [pair.ratio for pair in pairs if pair.layout == "16:4" and pair.ratio is not None]
    whole = [_over_all(pairs, f"{precision}, {optimizer}") for precision, optimizer in _TRAININGS]
    return Outcome(
        "1.4 x over 2BW",
        f"{min(shallow):.2f} to {max(shallow):.2f} x as 8:8, the shallowest that fits; {min(whole):.2f} to "
        f"{max(whole):.2f} x over d:w = 4:16 to 64:1",
        range_verdict(min(whole), max(whole), 1.4),
        "In 8:8 a GPU holds so much training state that 2BW, with one version more, has room for smaller micro-batches "
        f"only, which are bound by launches of kernels: WPipe is {shallow[0]:.2f} times as fast in float32 with "
        f"momentum. In 16:4 both fit the same micro-batches, and the ratio is {max(deeper):.2f} at most. So 1.4 comes "
        "out in equal layouts of depth 8, not for the best layout of each. The paper's reasons are further layouts for "
        "WPipe, and the switching of weight versions, which takes no time here. The verdict is of the best layouts, as "
        "in its Equation 3. Spread: number type and optimizer.",
        [*_pairs_table(pairs)],
    )


def _over_all(pairs: list[Pair], training: str) -> float:
    rows = [pair for pair in pairs if pair.training == training]
    own = max(pair.own.throughput for pair in rows if pair.own)
    return own / max(pair.other.throughput for pair in rows if pair.other)


def _pairs_table(pairs: list[Pair]) -> Iterator[str]:
    yield "| | d:w | WPipe | samples/s | GB | 2BW | samples/s | GB | ratio |"
    yield "|---|---|---|---:|---:|---|---:|---:|---:|"
    for pair in pairs:
        ratio = "" if pair.ratio is None else f"{pair.ratio:.2f}"
        yield f"| {pair.training} | {pair.layout} | {_cells(pair.own)} | {_cells(pair.other)} | {ratio} |"


def _cells(best: Best | None) -> str:
    if best is None:
        return "does not fit | | "
    return f"{best.choice} | {best.throughput:.1f} | {best.peak_bytes / 1e9:.1f}"


def repeat_over_others() -> Outcome:
    """Search Bert192 and ResNeXt302 on eight GPUs, over batches."""
    batches = (8, 16, 32, 64, 128, 256, 512)
    bests: dict[tuple[str, str], dict[int, Best | None]] = {}
    models: dict[str, ProfileOf] = {
        "Bert192": any_size(bert(192)),
        "ResNeXt302": partial(convolutions, RESNEXT_BLOCKS["ResNeXt302"]),
    }
    for model, profile_of in models.items():
        for scheme in ("wpipe", "gpipe", "pipedream"):
            if scheme != "pipedream" or model == "Bert192":
                tried = (1, 2, 4, *batches) if scheme == "pipedream" else batches
                bests[model, scheme] = {batch: _best(scheme, 8, batch, profile_of) for batch in tried}
    over_gpipe = {model: _ratios(bests[model, "wpipe"], bests[model, "gpipe"]) for model in models}
    top = {scheme: _top(bests["Bert192", scheme]) for scheme in ("wpipe", "pipedream")}
    over_pipedream = top["wpipe"].throughput / top["pipedream"].throughput
    highest = [max(ratios) for ratios in over_gpipe.values()]
    results, numbers = [*highest, over_pipedream], [2.1, 2.2, 7.1]
    is_near = all(abs(ratio - number) <= 0.15 * number for ratio, number in zip(results, numbers, strict=True))
    return Outcome(
        "2.1 x GPipe (Bert192), 2.2 x (ResNeXt302), 7.1 x PipeDream (Bert192)",
        f"up to {highest[0]:.2f}, up to {highest[1]:.2f}, {over_pipedream:.2f} x",
        Verdict.AGREES if is_near else Verdict.SHAPE if min(results) > 1 else Verdict.DIFFERS,
        "GPipe's loss is its bubble: at M = N = 8 an ideal pipeline without flushes is 15 / 8 = 1.88 times as fast. "
        f"PipeDream fits with {top['pipedream'].choice.size} samples per step here ({top['pipedream'].choice}), where "
        "small micro-batches cost it throughput; the paper does not say why 7. Largest ratio over batches of 2^3 to "
        "2^9; agrees within 15 %, the shape if WPipe is ahead. Bert192 in float32 with momentum.",
        [*_batches_table(bests, batches)],
    )


def _ratios(own: dict[int, Best | None], other: dict[int, Best | None]) -> list[float]:
    pairs = [(own[batch], other[batch]) for batch in own]
    return [first.throughput / second.throughput for first, second in pairs if first and second]


def _top(bests: dict[int, Best | None]) -> Best:
    return max((best for best in bests.values() if best), key=lambda best: best.throughput)


def _batches_table(bests: dict[tuple[str, str], dict[int, Best | None]], batches: tuple[int, ...]) -> Iterator[str]:
    yield f"| model | scheme | {' | '.join(f'batch {batch}' for batch in batches)} |"
    yield f"|---|---{'|---:' * len(batches)}|"
    for (model, scheme), by_batch in bests.items():
        cells = [f"{best.throughput:.1f}" if (best := by_batch[batch]) else "" for batch in batches]
        yield f"| {model} | {scheme} | {' | '.join(cells)} |"


def repeat_shallow() -> Outcome:
    """Search ResNeXt800 on 64 GPUs with a batch of 2^9, four and eight deep, and its least memory four deep."""
    profile_of = partial(convolutions, RESNEXT_BLOCKS["ResNeXt800"])
    schemes = ("wpipe", "pipedream_2bw")
    pairs = [
        Pair("float32, momentum", f"{depth}:{64 // depth}", *(_best(s, 64, 512, profile_of, depth) for s in schemes))
        for depth in (4, 8)
    ]
    least = [_least_bytes(scheme, profile_of) / 1e9 for scheme in schemes]
    shallow = pairs[0]
    assert shallow.own is not None, "WPipe fits four deep"
    if shallow.other is None:
        verdict, ratio = Verdict.AGREES, "only WPipe fits as 4:16"
    else:
        over = shallow.own.throughput / shallow.other.throughput
        halved = _with_halved_messages(shallow.own, profile_of) / shallow.other.throughput
        verdict = Verdict.DIFFERS
        ratio = f"both fit as 4:16; WPipe {over:.2f} x 2BW, {halved:.2f} x with halved messages"
    return Outcome(
        "WPipe runs as 4:16, 2BW as 8:8 or deeper; WPipe not slower",
        ratio,
        verdict,
        "The text does not name the model; it is a convolutional network, and ResNeXt800 is the largest. It agrees if "
        f"2BW does not fit four deep. The smallest setting there needs {least[0]:.1f} GB with WPipe and {least[1]:.1f} "
        "GB with 2BW, of 16: memory does not exclude 2BW. WPipe has twice the messages, which cross the network where "
        "gradients stay in the nodes (B). Halved messages, as its compression makes them, are free of "
        "conversions here.",
        [*_pairs_table(pairs)],
    )


def _least_bytes(scheme: str, profile_of: ProfileOf) -> float:
    """Return the peak memory of the setting that needs the least, four deep."""
    tried = (choice for choice in choices(scheme, 64, 512) if choice.depth == 4 and choice.recomputes)
    return min(max(Pipeline(choice, profile_of).peaks()) for choice in tried)


def _with_halved_messages(best: Best, profile_of: ProfileOf) -> float:
    """Return the throughput of a choice whose messages have half of the bytes, with free conversions."""
    pipeline = Pipeline(best.choice, profile_of)
    stages = (replace(stage, output_bytes=stage.output_bytes // 2) for stage in pipeline.costs.stages)
    pipeline.costs = StageCosts(tuple(stages))
    return best.choice.samples / pipeline.simulated()[0]


def repeat_models() -> Outcome:
    """Search WPipe and 2BW on BERT and on ResNeXt, one node and eight, at a large batch, for both counts of 2BW."""
    models: dict[str, tuple[int, int, ProfileOf]] = {
        "Bert96": (8, 512, any_size(bert(96))),
        "Bert384": (64, 2048, any_size(bert(384))),
        "ResNeXt200": (8, 512, partial(convolutions, RESNEXT_BLOCKS["ResNeXt200"])),
        "ResNeXt500": (64, 2048, partial(convolutions, RESNEXT_BLOCKS["ResNeXt500"])),
    }
    pairs, halved = [], []
    for model, (gpus, batch, profile_of) in models.items():
        own = _best("wpipe", gpus, batch, profile_of)
        assert own is not None, "WPipe fits"
        for count, keeps_period in (("M - k", True), ("d - k", False)):
            other = _best("pipedream_2bw", gpus, batch, profile_of, keeps_period=keeps_period)
            assert other is not None, "2BW fits"
            pairs.append(Pair(f"{model}, {count}", f"{own.choice.depth}:{own.choice.width}", own, other))
            halved.append(_with_halved_messages(own, profile_of) / other.throughput)
    whole = [pair.ratio or 0.0 for pair in pairs]
    is_same = all(str(pair.own.choice) == str(pair.other.choice) for pair in pairs[:3:2] if pair.own and pair.other)
    texts = [
        ", ".join(f"{model} {ratio:.2f}" for model, ratio in zip(models, ratios, strict=True))
        for ratios in (halved[::2], whole[::2], whole[1::2])
    ]
    return Outcome(
        "more for BERT than for ResNeXt; never slower after communication optimization",
        f"{texts[0]}; whole messages {texts[1]}; and by 2BW's own order {texts[2]}",
        _of_models(halved[::2]),
        "WPipe over 2BW, the best settings of both: one node at 512 samples, eight nodes at 2048. The verdict "
        "is on the paper's own terms: worker k of 2BW holds M - k micro-batches, as its Table 1 counts, and WPipe's "
        "messages have half of their bytes, as its compression makes them, with free conversions. With whole messages "
        f"the row {_in_words(whole[::2])}. By the order of 2BW's authors, which is ours, worker k holds d - k, so that "
        f"2BW often needs no recomputation: the row {_in_words(whole[1::2])}. "
        + ("The best settings of a BERT are the same for both, as memory does not bind them. " if is_same else "")
        + "The paper prints no numbers. The shape agrees if WPipe is never 1 % slower, and gains 1 % more with a BERT.",
        [*_pairs_table(pairs)],
    )


def _of_models(ratios: list[float]) -> Verdict:
    """Return the verdict on WPipe over 2BW, two BERTs and two ResNeXts."""
    is_alike = min(ratios) > 0.99 and max(ratios[:2]) > max(ratios[2:]) + 0.01
    return Verdict.SHAPE if is_alike else Verdict.DIFFERS


def _in_words(ratios: list[float]) -> str:
    return "would differ" if _of_models(ratios) is Verdict.DIFFERS else "has the same verdict"
