"""Eight schedules on streams train as the model in one piece does on the same device."""

import pytest
import torch

from benchmarks.gpu_rows.whole_model import SAME_ORDER, SCHEDULES, TOLERANCE, compare

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", SCHEDULES)
def test_losses_gradients_and_weights_are_those_of_the_un_pipelined_model(name, num_ranks, device):
    difference = compare(name, num_ranks, device)
    assert difference.largest <= (0.0 if name in SAME_ORDER else TOLERANCE), difference
