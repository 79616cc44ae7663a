"""Profiles made by hand, for tests that need no measurement."""

from pipesched.profiles.costs import LayerCost, LayerMeasurement, LayerSplit, LayerWork, Profile, Provenance

PROVENANCE = Provenance(
    device="a device",
    dtype="float32",
    threads=1,
    companions=0,
    optimizer="adamw",
    warmup=1,
    repeats=3,
    seed=0,
    host_cores=2,
    versions=(("torch", "2.13.0"),),
    date="2026-01-01T00:00:00+00:00",
)


def measurement(size=1, forward_s=1.0, backward_s=2.0, **fields):
    """Return a layer that hands on 10 bytes per sample and keeps 100 per sample inside."""
    usual = {
        "input_bytes": 10 * size,
        "output_bytes": 10 * size,
        "output_storage_bytes": 10 * size,
        "saved_bytes": 100 * size,
        "input_saved": False,
        "output_saved": False,
        "output_is_input": False,
    }
    return LayerMeasurement(size, forward_s, backward_s, **(usual | fields))


def split(input_s=0.75, weight_s=0.5, gradient_bytes=7, saved_bytes=100, **flags):
    """Return I and W of a layer that lets go of nothing at I."""
    return LayerSplit(
        input_s, weight_s, gradient_bytes, saved_bytes, **({"input_saved": False, "output_saved": False} | flags)
    )


WORK = LayerWork(copy_s=0.25, predict_s=0.375, average_s=0.125)


def layer(*measurements, name="layer", weight_bytes=8, optimizer_bytes=16, step_s=0.5, work=WORK):
    return LayerCost(name, weight_bytes, optimizer_bytes, step_s, measurements or (measurement(),), work)


def profile(*layers):
    return Profile("mlp", layers, PROVENANCE)
