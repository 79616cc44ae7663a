from functools import partial

import pytest
import torch
from torch import nn

from pipesched.executor import RankFailed
from pipesched.executor.core import Bucket, buckets
from pipesched.executor.core import gradients as module_under_test
from pipesched.schedules.builders import build
from pipesched.schedules.transforms import with_step_barrier
from tests.executor import tuple_models
from tests.executor.models import WIDTH
from tests.executor.pipelines import Local


def parameters(*sizes, dtype=torch.float64):
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]


def with_gradients(*values):
    made = parameters(*(len(value) if value else 2 for value in values))
    for parameter, value in zip(made, values, strict=True):
        parameter.grad = torch.tensor(value, dtype=torch.float64) if value else None
    return made


def test_a_bucket_is_its_gradients_and_a_flag_for_each():
    assert Bucket(with_gradients([1.0, 2.0], None, [3.0])).flatten().tolist() == [1, 2, 0, 0, 3, 1, 0, 1]


def test_gradients_come_back_where_any_replica_had_one():
    made = with_gradients([1.0], None, None)
    Bucket(made).unflatten(torch.tensor([5.0, 6.0, 7.0, 0.0, 0.0, 2.0, 1.0, 0.0], dtype=torch.float64))
    assert made[0].grad.tolist() == [5.0]
    assert made[1].grad.tolist() == [6.0, 7.0]
    assert made[2].grad is None


def test_shapes_come_back_whatever_their_layout():
    weight = nn.Parameter(torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1))
    weight.grad = torch.randn(4, 2, 3)
    expected = weight.grad.clone()
    bucket = Bucket([weight])
    bucket.unflatten(bucket.flatten())
    assert torch.equal(weight.grad, expected)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([10, 20, 30], [[10, 20, 30]]),
        ([60, 40, 1], [[60, 40], [1]]),
        ([200, 1, 1], [[200], [1, 1]]),
        ([1, 200, 1], [[1], [200], [1]]),
        ([], []),
    ],
)
def test_buckets_are_filled_in_order_and_one_parameter_may_be_larger_than_a_bucket(sizes, expected, monkeypatch):
    monkeypatch.setattr(module_under_test, "_BUCKET_BYTES", 100 * 8)
    assert [[p.numel() for p in bucket._parameters] for bucket in buckets(parameters(*sizes))] == expected


def test_dtypes_are_not_mixed():
    mixed = [*parameters(1), *parameters(2, dtype=torch.float32), *parameters(3)]
    assert [[p.numel() for p in bucket._parameters] for bucket in buckets(mixed)] == [[1, 3], [2]]


def test_every_parameter_of_a_real_stage_is_in_a_bucket_once():
    stage = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 5, bias=False))
    parameters_in_order = [p for bucket in buckets(list(stage.parameters())) for p in bucket._parameters]
    assert [id(p) for p in parameters_in_order] == [id(p) for p in stage.parameters()]


@pytest.mark.parametrize("clip_grad_norm", [None, 1.0])
def test_sparse_gradients_are_refused_where_they_are_summed_or_clipped(clip_grad_norm):
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(8, WIDTH, sparse=True)

        def forward(self, x):
            return self.table(x.long().clamp(0, 7)).mean(1)

    model = tuple_models.of("sparse", [Table, *[partial(nn.Linear, WIDTH, WIDTH)] * 3])
    schedule = build("chimera" if clip_grad_norm is None else "1f1b", 2, 4)
    if clip_grad_norm is not None:
        schedule = with_step_barrier(schedule)
    with pytest.raises(RankFailed) as raised:
        Local(schedule, model, clip_grad_norm=clip_grad_norm).run()
    assert "got a sparse gradient of (8, 4), expected a dense one where gradients are summed or" in str(raised.value)
    Local(build("1f1b", 2, 4), model).run()
