import pytest
import torch
from torch import nn

from pipesched.profiles import ProfileError
from pipesched.profiles.models.torch_names import make_optimizer


@pytest.mark.parametrize(
    ("name", "kind", "momentum"),
    [
        ("sgd", torch.optim.SGD, 0),
        ("momentum", torch.optim.SGD, 0.9),
        ("adam", torch.optim.Adam, None),
        ("adamw", torch.optim.AdamW, None),
    ],
)
def test_an_optimizer_is_made_by_name(name, kind, momentum):
    instance = make_optimizer(name, [nn.Parameter(torch.zeros(2))], 0.5)
    assert type(instance) is kind
    assert instance.param_groups[0]["lr"] == 0.5
    assert instance.param_groups[0].get("momentum") == momentum


@pytest.mark.parametrize(("name", "lr"), [("lion", 0.1), ("sgd", -1.0), ("sgd", float("nan"))])
def test_an_unknown_name_or_rate_is_refused(name, lr):
    with pytest.raises(ProfileError, match="expected"):
        make_optimizer(name, [nn.Parameter(torch.zeros(2))], lr)


def test_other_settings_than_the_learning_rate_are_those_of_pytorch_unless_given():
    parameters = [nn.Parameter(torch.zeros(2))]
    (group,) = make_optimizer("momentum", parameters, 0.5, weight_decay=0.1, is_nesterov=True).param_groups
    assert (group["weight_decay"], group["nesterov"], group["momentum"]) == (0.1, True, 0.9)
    for name, make in (("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        assert make_optimizer(name, parameters, 0.5).param_groups == make(parameters, 0.5).param_groups
