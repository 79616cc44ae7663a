"""Fig. 9 and 8e: the memory of Bert96 and ResNeXt200, and the largest micro-batch with and without recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from statistics import fmean

from paper_rows.figure import Outcome, Verdict, verdict_of
from paper_rows.wpipe.models import MEMORY_BYTES, RESNEXT_BLOCKS, bert, convolutions
from paper_rows.wpipe.search import Choice, Pipeline, ProfileOf, any_size
from pipesched.profiles import OptimizerName

_SCHEMES = ("gpipe", "pipedream_2bw", "wpipe")
_WITHIN = 0.15

Peaks = Mapping[tuple[str, int, bool], float]
"""Mean peak memory of a GPU [bytes] by scheme, micro-batch and recomputation."""


def repeat_memory() -> Outcome:
    """Simulate the memory of Bert96 as 8 : 1 and of ResNeXt200 as 2 : 4, with a micro-batch per GPU in flight."""
    sizes = (8, 16, 32, 64)
    berts: dict[OptimizerName, Peaks] = {
        optimizer: _peaks(8, 1, sizes, any_size(bert(96, "float32", optimizer))) for optimizer in ("momentum", "adam")
    }
    resnext = _peaks(2, 4, (8, 16, 32), partial(convolutions, RESNEXT_BLOCKS["ResNeXt200"]))
    saved = {
        optimizer: [_less(peaks, "wpipe", "pipedream_2bw", size) for size in sizes]
        for optimizer, peaks in berts.items()
    }
    ends = [fmean(of_size) for of_size in zip(*saved.values(), strict=True)]
    over_gpipe = " and ".join(f"{_less(berts['momentum'], 'wpipe', 'gpipe', size):.0%}" for size in (8, 64))
    plain = berts["momentum"]["pipedream_2bw", 64, False] / 1e9
    at_8, at_32 = (
        " and ".join(f"{_saving(peaks, scheme, size):.0%}" for scheme in ("wpipe", "pipedream_2bw"))
        for peaks, size in ((berts["momentum"], 8), (resnext, 32))
    )
    return Outcome(
        "21 % at 8 to 36 % at 64",
        "; ".join(f"{name} {', '.join(f'{share:.0%}' for share in shares)}" for name, shares in saved.items()),
        verdict_of([ends[0], ends[-1]], [0.21, 0.36], _WITHIN),
        f"Less memory than 2BW-R, at micro-batches of {', '.join(map(str, sizes))}; spread: the optimizer. Agrees "
        "within 15 %. Beside GPipe-R the paper has 14 % more at 8 and 28 % less at 64; ours is "
        f"{over_gpipe} less: GPipe keeps the inputs of M micro-batches here. Recomputation saves 65 % (WPipe) and "
        f"47 % (2BW) at 64 in the paper. Without it 2BW would need {plain:.0f} GB of the GPU's 16 for micro-batches of "
        f"64, so these must be 64 samples per GPU; in 8 micro-batches of 8 it saves {at_8} here. ResNeXt200 at 32: "
        f"56 % and 29 % in the paper, {at_32} here.",
        [*_table({"Bert96, 8:1": berts["momentum"], "ResNeXt200, 2:4": resnext})],
    )


def _peaks(depth: int, width: int, sizes: tuple[int, ...], profile_of: ProfileOf) -> Peaks:
    return {
        (scheme, size, recomputes): fmean(
            Pipeline(Choice(scheme, depth, width, size, depth, recomputes, False), profile_of).peaks()
        )
        for scheme in _SCHEMES
        for size in sizes
        for recomputes in (False, True)
    }


def _less(peaks: Peaks, scheme: str, other: str, size: int) -> float:
    return 1 - peaks[scheme, size, True] / peaks[other, size, True]


def _saving(peaks: Peaks, scheme: str, size: int) -> float:
    return 1 - peaks[scheme, size, True] / peaks[scheme, size, False]


def _table(by_model: Mapping[str, Peaks]) -> Iterator[str]:
    names = [f"{scheme}{'-R' * recomputes}" for scheme in _SCHEMES for recomputes in (False, True)]
    yield f"| model | micro-batch | {' | '.join(f'{name}, GB' for name in names)} |"
    yield f"|---|---:{'|---:' * len(names)}|"
    for model, peaks in by_model.items():
        for size in dict.fromkeys(size for _, size, _ in peaks):
            cells = [
                f"{peaks[scheme, size, recomputes] / 1e9:.2f}" for scheme in _SCHEMES for recomputes in (False, True)
            ]
            yield f"| {model} | {size} | {' | '.join(cells)} |"


def repeat_largest_batches() -> Outcome:
    """Find the largest micro-batch within 16 GB, with and without recomputation, of 8 : 1."""
    growth: dict[str, dict[int, float]] = {scheme: {} for scheme in _SCHEMES[1:]}
    for scheme, by_layers in growth.items():
        for layers in (96, 192, 384):
            plain, recomputed = (_largest(scheme, layers, recomputes) for recomputes in (False, True))
            by_layers[layers] = recomputed / plain if plain else float("inf")
    is_more = all(growth["wpipe"][layers] > growth["pipedream_2bw"][layers] for layers in growth["wpipe"])
    is_inside = all(
        min(by_layers.values()) <= number <= max(by_layers.values())
        for by_layers, number in zip(growth.values(), (16, 44), strict=True)
    )
    texts = [", ".join(f"{ratio:.0f}" for ratio in by_layers.values()) for by_layers in growth.values()]
    return Outcome(
        "2BW 16 x, WPipe 44 x",
        f"2BW {texts[0]} x, WPipe {texts[1]} x",
        Verdict.AGREES if is_more and is_inside else Verdict.SHAPE if is_more else Verdict.DIFFERS,
        "The text does not name the model of the figure: ours are Bert96, 192 and 384 as 8 : 1 with M = 8 in float32 "
        "with momentum. Agrees if the paper's numbers are within these ranges.",
    )


def _largest(scheme: str, layers: int, recomputes: bool) -> int:
    """Return the largest micro-batch that fits, up to 1024; 0 if none does."""

    def fits(size: int) -> bool:
        choice = Choice(scheme, 8, 1, size, 8, recomputes, False)
        return max(Pipeline(choice, any_size(bert(layers))).peaks()) <= MEMORY_BYTES

    low, high = 0, 1024
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
