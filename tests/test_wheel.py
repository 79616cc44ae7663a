"""What an installation puts beside other packages: one folder, which works wherever it is started."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.processes import run

ROOT = Path(__file__).parents[1]
FOLDERS = ("pipesched", "schedules", "profiles", "simulator", "executor")
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
OUR_NAMES = ("executor.py", "profiles.py", "profiles/__init__.py", "simulator.py")
CELL = """
import pipesched
result = pipesched.simulate(pipesched.build("1f1b", 2, 4), pipesched.DeviceCost(1.0, 2.0))
print(pipesched.__file__, result.makespan_s)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the wheel, built from a copy: building leaves files behind."""
    copy = tmp_path_factory.mktemp("copy")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy)
    built = run([sys.executable, "-m", "pip", "wheel", ".", *OFFLINE, "-w", "built"], cwd=copy)
    assert built.returncode == 0, built.stderr
    (path,) = (copy / "built").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """Return an environment with nothing but the wheel; what it depends on is found where the tests have it."""
    folder = tmp_path_factory.mktemp("environment")
    assert run([sys.executable, "-m", "venv", "--without-pip", str(folder)]).returncode == 0
    packages = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", *OFFLINE, str(wheel)]
    installed = run(pip)
    assert installed.returncode == 0, installed.stderr
    Path(packages, "elsewhere.pth").write_text(sysconfig.get_path("purelib"))
    return folder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "profiles").mkdir()
    for name in OUR_NAMES:
        (tmp_path / name).write_text(f"raise ImportError('the {name} of the folder')")
    return tmp_path


def test_a_wheel_has_all_files_of_the_project_under_one_name(wheel):
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {
        str(Path(folder, name).relative_to(ROOT))
        for folder, _, files in os.walk(ROOT / "pipesched", followlinks=True)
        for name in files
        if not folder.endswith("__pycache__")
    }
    assert names == files
    assert {"pipesched/__main__.py", "pipesched/executor/__main__.py", "pipesched/profiles/data/conv-epyc.json"} < files
    assert {f"pipesched/simulator/views/page.{suffix}" for suffix in ("html", "css", "js")} < files


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("bin/pipesched", "simulate", "-s", "1f1b", "-p", "2", "-m", "4", "--uniform", "f=1,b=2"), "makespan"),
        (("bin/pipesched", "run", "-s", "1f1b", "-p", "2", "-m", "4", "--uniform", "f=0.001,b=0.001"), "makespan"),
        (("bin/python", "-c", CELL), "15.0"),
    ],
    ids=["simulate", "run", "cell"],
)
def test_an_installation_takes_nothing_from_a_folder_with_our_names(environment, folder, command, said):
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = run([str(environment / command[0]), *command[1:]], cwd=folder, env=clean)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout
    assert command[-1] != CELL or done.stdout.startswith(str(environment))
