"""The weights of a model that several ranks or stages hold: of replicas of a stage, and of stages that share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from pipesched.executor.core.stage_building import tied_parameters
from pipesched.profiles.models import Model, ties_between
from pipesched.schedules import Schedule


@dataclass(frozen=True, slots=True)
class CopiedWeight:
    """A weight or buffer with several copies.

    Attributes:
        first_rank: The rank with the first copy: of the first stage that has one, the first replica.
        own: The copies in this process, in order of their stages.
    """

    first_rank: int
    own: list[Tensor]


def copied_weights(
    schedule: Schedule, model: Model, bounds: Sequence[tuple[int, int]], stages: Mapping[int, nn.Module]
) -> dict[str, CopiedWeight]:
    """Return the weights and buffers of some stages that have copies, by a name for messages.

    Weights of replicated stages come first, then weights that stages share. A weight that is both has two names.

    Args:
        schedule: The lists; gives the replicas.
        model: The model.
        bounds: Half-open range of layers of each stage.
        stages: The layers of some stages, by number.
    """
    copied: dict[str, CopiedWeight] = {}
    for index, module in sorted(stages.items()):
        replicas = schedule.replicas(index)
        for name, tensor in module.state_dict(keep_vars=True).items() if len(replicas) > 1 else ():
            if isinstance(tensor, Tensor):
                copied[f"{name} of stage {index}"] = CopiedWeight(min(replicas), [tensor])
    ties = ties_between(model, bounds)
    for index, module in sorted(stages.items()):
        for number, parameter in tied_parameters(model, bounds, index, module).items():
            layer, name = ties[number][0]
            first = next(stage for stage, (begin, end) in enumerate(bounds) if begin <= layer < end)
            weight = copied.setdefault(f"{name} of layer {layer}", CopiedWeight(min(schedule.replicas(first)), []))
            weight.own.append(parameter)
    return copied
