"""`pipesched profile --shapes` and `--fit`: kernels of this machine, and a GPU of them."""

import json

import pytest

import pipesched as library
from pipesched.profiles.io import load_gpu, load_kernel_table

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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--fit one.csv --gpu h100", "one.csv: got 1 products of matrices, expected at least 16, of which half are"),
        (
            "--fit few.csv --gpu h100",
            "few.csv: got 15 products of matrices, expected at least 16, of which half are fitted; measure more",
        ),
        ("--fit none.csv --gpu h100", "none.csv: got No such file or directory, expected a file that can be read"),
        ("--fit many.csv", "--fit: got it without --gpu, expected --gpu and --out; try --fit shapes.csv --gpu h100"),
        ("--fit many.csv --gpu h100 --repeats 3", "--fit: got options of layers or of an estimate too, expected --gpu"),
        ("--fit many.csv --gpu h10", "gpu: got 'h10', expected one of a10, a100"),
        ("--fit many.csv --gpu curve.json", "curve.json: kernels: got 'a101', expected one of a100, b200"),
        ("--fit blank.csv --gpu h100", "blank.csv: row 3, column seconds: got '', expected a number above 0"),
        ("--fit many.csv --gpu slow.json", "many.csv: kernels: got 4.19e+03 of the bfloat16 peak of slow for m=64, "),
        ("gpt --fit many.csv --gpu h100", "profile: got --shapes or --fit with a model, costs or runs, expected them"),
        ("--shapes s.csv --gpu h100", "--shapes: got it with --fit, --gpu or --out, expected it alone; fit the table"),
        ("--shapes s.csv --fit many.csv", "--shapes: got it with --fit, --gpu or --out, expected it alone"),
        ("--shapes s.csv --companions 2", "--shapes: got an option of layers, expected --device, --dtype, --threads"),
        ("--shapes s.csv --dtype float64", "--dtype: got 'float64', expected one of float32, bfloat16, float16"),
        ("--shapes s.json", "s.json: got suffix '.json', expected .csv; try s.csv"),
    ],
)
def test_what_cannot_be_measured_or_fitted_is_one_line(pipesched, folder, line, said):
    for name, rows in {"one.csv": 1, "few.csv": 15, "many.csv": 40}.items():
        table_of(folder, name, rows)
    (folder / "slow.json").write_text(json.dumps(CORE | {"flops_per_s": {"bfloat16": 2e8}}))
    (folder / "curve.json").write_text(json.dumps(CORE | {"kernels": "a101"}))
    (folder / "blank.csv").write_text("op,batch,m,n,k,seconds\nmatmul,1,64,64,64,1e-5\nmatmul,1,64,64,64,\n")
    before = sorted(folder.iterdir())
    answer = pipesched(f"profile {line}")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert answer.err.startswith("pipesched: ")
    assert said in answer.err
    assert sorted(folder.iterdir()) == before


def test_the_library_answers_as_the_command(pipesched, folder):
    table_of(folder, "many.csv", 40)
    answer = pipesched("profile --fit many.csv --gpu a100 --json")
    fitted = library.fit_gpu(folder / "many.csv", "a100")
    said = json.loads(answer.out)
    curve = said["gpu"]["kernels"]
    assert fitted.gpu.kernels is not None
    assert curve["matmul"] == fitted.gpu.kernels.matmul
    assert (len(fitted.fitted), len(fitted.held_out)) == (20, 20)
    (row,) = fitted.to_rows()
    assert said["errors"] == [row]
    assert row["median_absolute_error"] < 0.5
    assert fitted.to_frame().shape == (1, 6)


@pytest.mark.parametrize(("gpu", "is_foreign"), [("a100", False), ("a100-40gb", False), ("h100", True)])
def test_a_table_of_another_device_has_a_note(folder, gpu, is_foreign):
    rows = [f"NVIDIA A100-SXM4-40GB,matmul,1,{64 * (row + 1)},256,256,{1e-5 * (row + 1)}" for row in range(40)]
    (folder / "of_a100.csv").write_text("\n".join(["gpu,op,batch,m,n,k,seconds", *rows]))
    note = f"the table was measured on NVIDIA A100-SXM4-40GB: the fitted GPU is no {gpu}"
    assert (note in library.fit_gpu(folder / "of_a100.csv", gpu).notes) == is_foreign
