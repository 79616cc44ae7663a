"""Make docs/schedules.md and its pictures: ``make generated``, or ``python docs/make_schedules.py``.

The words are those of docs/schedules.toml. Every number is computed here, and a form that does not give what the
simulation gives is refused.
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent)]

import pipesched
from pipesched import CATALOGUE, Schedule, build
from pipesched.schedules.builders import Entry
from pipesched.schedules.ops import Average, Overlap, Phase, Reduce, computes, stages_of
from pipesched.simulator.analysis import CellValue, Summary, to_markdown
from pipesched.workflows.simulating import Simulation

COST = pipesched.DeviceCost(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
"""F, I and W of all that a rank holds take a second each."""
DRAWN, COUNTED = (4, 8), (8, 32)
"""Ranks and micro-batches of the pictures, and of the numbers."""
LINE_LENGTH = 118
"""Characters of a line of prose, at most."""
UNITS = {"t_f": 1.0, "t_b": 2.0, "t_i": 1.0, "t_w": 1.0, "t_FB": 3.0, "v": 2, "limit": COUNTED[0]}
"""What a form may name besides p, m and the schedule's parameters: seconds, chunks, and zb_auto's default limit."""

HEAD = """\
# Schedules

Made by `make generated` from docs/schedules.toml; do not edit. The page has the source, the costs and the
requirements of every schedule of `pipesched list`.

There are p ranks, m micro-batches, and v chunks per rank; k is the number of a rank, from 0. t_f, t_b, t_i, t_w are
the seconds of F, B, I (backward for inputs) and W (backward for weights) of all layers on a rank, and t_b = t_i +
t_w. Zero-bubble papers write B for our I.

* *bubble*: the makespan minus the seconds of a rank's work. A bubble *of the longest span* takes the longest span of
  a rank, from its first op to its last, instead of the makespan. Messages take no time here.
* *in flight*: the largest number of micro-batches in flight on a rank. A micro-batch is in flight from its F to the
  end of its backward, or of its W if the backward is split. In a chunk it counts 1 / v, and in the whole model on one
  rank it counts p. M_B is the memory of a micro-batch until I, and M_W its memory from I to W.

Every formula below equals the result of a simulation with F, I and W of one second, p = {p}, m = {m}; `make generated`
checks this.

## Side by side

`pipesched compare --all -p {p} -m {m} --uniform f=1,i=1,w=1` (two chunks per rank where a schedule takes any):

"""
ASYNCHRONOUS = """\
## Asynchronous

These schedules step without a flush: the weights of a rank change while micro-batches are in flight. Their makespan
is also for {m} micro-batches, but the next micro-batches follow without a gap.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What is said of a schedule by hand; the fields are explained in docs/schedules.toml."""

    text: str
    bubble: str
    in_flight: str
    of_span: bool = False
    where: str = ""
    by_rank: str = ""
    needs: str = "any p and m"


def words() -> dict[str, Words]:
    """Return what is said by hand of each schedule."""
    entries: dict[str, dict[str, Any]] = tomllib.loads((DOCS / "schedules.toml").read_text())
    return {name: Words(**fields) for name, fields in entries.items()}


def summaries_of(*names: str) -> dict[str, Summary]:
    """Return the numbers of some schedules in the unit model."""
    p, m = COUNTED
    compared = pipesched.compare(names, COST, num_ranks=p, num_microbatches=m)
    return dict(zip(names, compared.summaries, strict=True))


def require_true(entry: Entry, said: Words, summary: Summary) -> None:
    """Refuse forms that do not give what was found.

    Raises:
        ValueError: One does not.
    """
    assert summary.makespan_s is not None
    assert summary.bubble_of_longest_span is not None
    p, m = COUNTED
    known = (
        {parameter.name: parameter.default for parameter in entry.parameters}
        | UNITS
        | {"p": p, "m": m, "min": min, "max": max}
    )
    work_s = m * (UNITS["t_f"] + UNITS["t_b"])
    longest_s = work_s / (1 - summary.bubble_of_longest_span) if said.of_span else summary.makespan_s
    for form, got in ((said.bubble, longest_s - work_s), (said.in_flight, summary.peak_microbatches_worst)):
        value = eval(form, {"__builtins__": {}}, known)  # noqa: S307 -- our own words
        if got is None or abs(value - got) > 1e-6:
            raise ValueError(
                f"docs/schedules.toml: {entry.name}: {form}: got {value}, expected {got}; correct the form"
            )


def page() -> str:
    """Return the text of docs/schedules.md."""
    said, summaries = words(), summaries_of(*CATALOGUE)
    for name, text in said.items():
        require_true(CATALOGUE[name], text, summaries[name])
    counts = dict(zip("pm", COUNTED, strict=True))
    compared = [_row(summary) for summary in summaries.values()]
    parts = [HEAD.format(**counts), to_markdown(compared), "\n"]
    for is_asynchronous, head in ((False, ""), (True, ASYNCHRONOUS.format(**counts))):
        names = [name for name, entry in CATALOGUE.items() if entry.traits.is_asynchronous is is_asynchronous]
        parts += [head, *(_section(CATALOGUE[name], said.get(name), summaries[name]) for name in names)]
    return "".join(parts).rstrip() + "\n"


def _row(summary: Summary) -> dict[str, CellValue]:
    return {
        "schedule": f"[{summary.name}](#{summary.name})",
        "makespan [s]": summary.makespan_s,
        "bubble_fraction": _percent(summary.bubble_fraction),
        "bubble_overhead": _percent(summary.bubble_overhead),
        "bubble_of_longest_span": _percent(summary.bubble_of_longest_span),
        "in flight, worst": summary.peak_microbatches_worst,
        "in flight, best": summary.peak_microbatches_best,
        "model copies": summary.model_copies,
        "messages": summary.messages,
    }


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _section(entry: Entry, said: Words | None, summary: Summary) -> str:
    lines = {"source": _linked(entry.source), "also called": ", ".join(entry.aliases)}
    if said is not None:
        lines["bubble"] = f"`{said.bubble}`" + ", of the longest span" * said.of_span
        lines["in flight"] = f"`{said.in_flight}`" + f"; on rank k {said.by_rank}" * bool(said.by_rank)
        lines["where"] = said.where
    lines["weights"] = _weights(summary) + ", predicted copies included" * (entry.traits.prediction is not None)
    lines["uses"] = _uses(build(entry.name, *COUNTED))
    lines["parameters"] = "; ".join(
        f"`{taken.name}` ({'from the counts' if taken.default is None else taken.default}): {taken.text}"
        for taken in entry.parameters
    )
    lines["needs"] = "" if said is None else said.needs
    text = f"{entry.text[0].upper()}{entry.text[1:]}." if said is None else said.text
    table = "\n".join(f"| {key} | {value} |" for key, value in lines.items() if value)
    p, m = DRAWN
    picture = f"![{entry.name}, p = {p}, m = {m}](pictures/schedules/{entry.name}.png)"
    depth = "###" if entry.traits.is_asynchronous else "##"
    return f"{depth} {entry.name}\n\n{_wrapped(text)}\n\n{picture}\n\n| | |\n|---|---|\n{table}\n\n"


def _wrapped(text: str) -> str:
    return fill(" ".join(text.split()), LINE_LENGTH, break_long_words=False, break_on_hyphens=False)


def _weights(summary: Summary) -> str:
    models = "one model" if summary.model_copies == 1 else f"{summary.model_copies:g} models"
    versions = "" if summary.weight_versions == 1 else f", at most {summary.weight_versions} versions of a stage"
    return f"{models} on all ranks together{versions}"


def _uses(schedule: Schedule) -> str:
    """Return what the lists ask of an executor."""
    ops = [op for row in schedule.ops for op in row]
    phases = {part.phase for op in ops for part in computes(op)}
    chunks = max(len(stages_of(row)) for row in schedule.ops)
    features = [f"{chunks} stage{'s' * (chunks > 1)} per rank"]
    features += ["backwards split into I and W"] if Phase.BACKWARD_WEIGHT in phases else []
    features += ["overlapped pairs of F and B"] if any(isinstance(op, Overlap) for op in ops) else []
    features += ["replicas and a Reduce"] if any(isinstance(op, Reduce) for op in ops) else []
    features += ["several ranks on a device, and an Average"] if any(isinstance(op, Average) for op in ops) else []
    return ", ".join(features)


def _linked(source: str) -> str:
    """Turn the numbers of papers into links."""
    source = re.sub(r"arXiv:(\d{4}\.\d{5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", source)
    return re.sub(r"doi:(10\.[^\s,;]+)", r"[doi:\1](https://doi.org/\1)", source)


def draw(simulation: Simulation, path: Path) -> None:
    """Draw a picture in few colours: as legible as in many, in a quarter of the bytes."""
    from PIL import Image

    data = BytesIO()
    simulation.plot().savefig(data, format="png", dpi=110)
    Image.open(data).convert("RGB").quantize(96).save(path, optimize=True)


def main() -> None:
    """Write the page and all its pictures."""
    folder, text = DOCS / "pictures" / "schedules", page()
    folder.mkdir(parents=True, exist_ok=True)
    p, m = DRAWN
    for name in CATALOGUE:
        draw(pipesched.simulate(pipesched.build(name, p, m), COST), folder / f"{name}.png")
    (DOCS / "schedules.md").write_text(text)
    print(f"wrote docs/schedules.md and {len(CATALOGUE)} pictures")


if __name__ == "__main__":
    main()
