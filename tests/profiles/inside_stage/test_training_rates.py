"""Rates of training steps against the rates that trainers printed for them."""

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.io import model_shape

H100 = 989e12
"""Peak in bfloat16 [FLOP/s]."""
LLAMA_1B = "transformer:layers=16,hidden=2048,heads=32,ffn=8192,gated=yes,vocab=131072,seq=4096,tied=yes"
MPT_30B = "transformer:layers=48,hidden=7168,heads=56,vocab=50368,seq=2048,tied=yes"
GPT_181B = "transformer:layers=72,hidden=14336,heads=64,vocab=250880,seq=2048,tied=yes"


@pytest.mark.parametrize(
    ("name", "num_samples", "seconds", "num_gpus", "tokens_per_s", "utilization"),
    [
        pytest.param(LLAMA_1B, 256, 3.265, 8, 40_150, 0.392, id="nanotron, Ultra-Scale Playbook"),
        pytest.param(MPT_30B, 4096, 7.747, 512, 2_115, 0.4027, id="llm-foundry"),
    ],
)
def test_the_full_square_agrees_with_printed_utilization(
    name, num_samples, seconds, num_gpus, tokens_per_s, utilization
):
    rates = model_shape(name).sample_work(H100).rates(num_samples, seconds, num_gpus)
    assert rates.tokens_per_s == pytest.approx(tokens_per_s, rel=0.001)
    assert rates.utilization == pytest.approx(utilization, rel=0.005)


@pytest.mark.parametrize(
    ("name", "num_samples", "seconds", "num_gpus", "tokens_per_s", "printed"),
    [
        pytest.param("llama3-405b", 1536, 62.77, 256, 783, 1976e12, id="405B on GB200"),
        pytest.param("llama3-70b", 256, 6.244, 64, 5_248, 2348e12, id="70B on GB300"),
    ],
)
def test_the_half_square_agrees_with_megatron_bridge(name, num_samples, seconds, num_gpus, tokens_per_s, printed):
    rates = model_shape(name).sample_work(5e15, halves_attention=True).rates(num_samples, seconds, num_gpus)
    assert rates.tokens_per_s == pytest.approx(tokens_per_s, rel=0.001)
    assert rates.flops_per_s == pytest.approx(printed, rel=0.005)


def test_megatron_deepspeed_printed_the_work_with_recomputation():
    """BigScience, 181B on 384 A100: a forward pass of all blocks again, which is a third of their model FLOPs."""
    shape = model_shape(GPT_181B)
    rates = shape.sample_work(312e12).rates(2048, 114.11, 384)
    head = 6 * shape.vocab * shape.hidden * rates.tokens_per_s
    assert (rates.flops_per_s - head) * 4 / 3 + head == pytest.approx(141.27e12, rel=0.0005)


def test_a_utilization_above_one_is_refused_in_one_line():
    with pytest.raises(ProfileError, match=r"got an MFU of 12\.8, expected at most 1: 4096 samples in 0\.1 s .*[^\n]$"):
        model_shape(LLAMA_1B).sample_work(H100).rates(4096, 0.1, 128)
