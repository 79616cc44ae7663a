"""Table 1's layouts, as PipeDream's optimizer chooses them from the published profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from paper_rows.figure import Outcome, Verdict
from paper_rows.pipedream.clusters import CLUSTER_A, CLUSTER_B, profile_of
from pipesched import Cluster, Link, ProfileError, flat
from pipesched.profiles.costs import Profile
from pipesched.profiles.partitioning import ReplicationForm, by_replicas

_PUBLISHED = {
    ("VGG-16", "vgg16", 4): "3:1",
    ("VGG-16", "vgg16", 16): "15:1",
    ("AlexNet", "alexnet", 16): "15:1",
    ("ResNet-50", "resnet50", 16): "16",
    ("GNMT-8", "gnmt", 4): "1:1:1:1",
}
_FORMS: tuple[ReplicationForm, ...] = ("paper", "published")
_FLAT = {"flat, 1 GB/s": 1e9, "flat, 1.25 GB/s": 1.25e9, "flat, 3.125 GB/s": 3.125e9, "flat, 10 GB/s": 10e9}


def repeat_layouts() -> Outcome:
    """Run the optimizer on flat and hierarchical machines, in the paper's form and that of its published code."""
    layouts: dict[tuple[str, str, int], dict[str, str]] = {
        key: {
            f"{machine}, {form}": _layout(profile_of(key[1]), cluster, key[2], form)
            for machine, cluster in _machines(key[2])
            for form in _FORMS
        }
        for key in _PUBLISHED
    }
    machines = Counter(
        machine
        for key, by_machine in layouts.items()
        for machine, layout in by_machine.items()
        if layout == _PUBLISHED[key]
    )
    num_somewhere = sum(_PUBLISHED[key] in by_machine.values() for key, by_machine in layouts.items())
    ((best, num_there),) = machines.most_common(1)
    if num_there == len(layouts):
        verdict = Verdict.AGREES
    else:
        verdict = Verdict.SHAPE if num_somewhere == len(layouts) else Verdict.DIFFERS
    return Outcome(
        ", ".join(f"{name} {layout}" for (name, _, _), layout in _PUBLISHED.items()),
        f"{num_somewhere} of {len(layouts)} on some machine; at most {num_there} on the same ({best})",
        verdict,
        "The shape agrees if each layout comes out on some machine. The bandwidth that the optimizer was given is not "
        "stated. On two levels 15:1 cannot come out: the upper level hands out whole servers.",
        [*_table(layouts)],
    )


def _machines(num_gpus: int) -> Iterator[tuple[str, Cluster]]:
    for name, bytes_per_s in _FLAT.items():
        yield name, flat(num_gpus, Link(0.0, bytes_per_s))
    if num_gpus > 8:
        yield "cluster A", CLUSTER_A.cluster(num_gpus)
        yield "cluster B", CLUSTER_B.cluster(num_gpus)


def _layout(profile: Profile, cluster: Cluster, num_gpus: int, form: ReplicationForm) -> str:
    try:
        return by_replicas(profile, 1, cluster, num_gpus, form=form).replicas
    except ProfileError:
        return "none"


def _table(layouts: dict[tuple[str, str, int], dict[str, str]]) -> Iterator[str]:
    machines: Sequence[str] = [*max(layouts.values(), key=len)]
    names = [f"{name}, {count} GPUs ({_PUBLISHED[name, graph, count]})" for name, graph, count in layouts]
    yield f"| machine, form | {' | '.join(names)} |"
    yield f"|---{'|---' * len(names)}|"
    for machine in machines:
        cells = []
        for key, by_machine in layouts.items():
            layout = by_machine.get(machine, "")
            cells.append(f"**{layout}**" if layout == _PUBLISHED[key] else layout)
        yield f"| {machine} | {' | '.join(cells)} |"
