"""`pipesched profile --shapes` and `--fit`: kernels of this machine, and a GPU of them."""

import json

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.io import load_gpu, load_kernel_table
from pipesched.workflows.measuring import fit_gpu

CORE = {
    "memory_bytes": 16_000_000_000,
    "flops_per_s": {"float32": 1e12},
    "memory_bandwidth_bytes_per_s": 1e10,
    "link_bandwidth_bytes_per_s": 1e10,
    "efficiency": 0.5,
    "multiprocessors": 1,
    "kernels": "a100",
}


@pytest.mark.slow
def test_kernels_are_measured_here_and_a_curve_is_fitted_to_them(pipesched, folder):
    measured = pipesched("profile --shapes shapes.csv --repeats 1 --json")
    assert (measured.code, measured.err) == (0, "")
    rows = json.loads(measured.out)["kernels"]
    table = load_kernel_table(folder / "shapes.csv")
    assert len(table.kernels) == len(rows) > 40
    assert {row["op"] for row in rows} == {"matmul", "sdp_fwd", "sdp_bwd"}
    assert all(0 < row["seconds"] < 10 for row in rows)
    assert all(row["precision"] == "float32" for row in rows)
    for kernel, row in zip(table.kernels, rows, strict=True):
        assert kernel.seconds == pytest.approx(row["seconds"], rel=1e-4)
    (folder / "core.json").write_text(json.dumps(CORE))
    fitted = pipesched("profile --fit shapes.csv --gpu core.json --out mine.json")
    assert (fitted.code, fitted.err) == (0, "")
    assert "product of matrices" in fitted.out
    assert "held out" in " ".join(fitted.out.split())
    gpu = load_gpu(folder / "mine.json")
    assert (gpu.name, gpu.memory_bytes) == ("mine", 16_000_000_000)
    assert gpu.kernels is not None
    assert gpu.kernels.origin == "fitted to half of the kernels of shapes.csv"
    estimate = pipesched("profile gpt2 --gpu mine.json --precision float32 --microbatch-sizes 1")
    assert (estimate.code, estimate.err) == (0, "")


def table_of(folder, name, rows):
    lines = [f"matmul,1,{64 * (row + 1)},256,256,{1e-5 * (row + 1)}" for row in range(rows)]
    (folder / name).write_text("op,batch,m,n,k,seconds\n" + "\n".join(lines) + "\n")


def test_the_library_answers_as_the_command(pipesched, folder):
    table_of(folder, "many.csv", 40)
    answer = pipesched("profile --fit many.csv --gpu a100 --json")
    fitted = fit_gpu(folder / "many.csv", "a100")
    said = json.loads(answer.out)
    curve = said["gpu"]["kernels"]
    assert fitted.gpu.kernels is not None
    assert curve["matmul"] == fitted.gpu.kernels.matmul
    assert (len(fitted.fitted), len(fitted.held_out)) == (20, 20)
    (row,) = fitted.to_rows()
    assert said["errors"] == [row]
    assert row["median_absolute_error"] < 0.5
    assert fitted.to_frame().shape == (1, 6)


@pytest.mark.parametrize(
    ("rows", "peak", "said"),
    [
        (15, 1e15, "got 15 products of matrices, expected at least 16, of which half are fitted"),
        (40, 2e8, r"kernels: got 4\.19e\+03 of the bfloat16 peak of slow for m=64, "),
    ],
)
def test_a_table_that_cannot_be_fitted_is_named(folder, rows, peak, said):
    table_of(folder, "some.csv", rows)
    (folder / "slow.json").write_text(json.dumps(CORE | {"flops_per_s": {"bfloat16": peak}}))
    with pytest.raises(ProfileError, match=rf"some\.csv: {said}"):
        fit_gpu(folder / "some.csv", folder / "slow.json")


@pytest.mark.parametrize(("gpu", "is_foreign"), [("a100", False), ("a100-40gb", False), ("h100", True)])
def test_a_table_of_another_device_has_a_note(folder, gpu, is_foreign):
    rows = [f"NVIDIA A100-SXM4-40GB,matmul,1,{64 * (row + 1)},256,256,{1e-5 * (row + 1)}" for row in range(40)]
    (folder / "of_a100.csv").write_text("\n".join(["gpu,op,batch,m,n,k,seconds", *rows]))
    note = f"the table was measured on NVIDIA A100-SXM4-40GB: the fitted GPU is not a {gpu}"
    assert (note in fit_gpu(folder / "of_a100.csv", gpu).notes) == is_foreign
