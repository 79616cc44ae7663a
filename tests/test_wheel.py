"""What an installation puts beside other packages: one folder."""

import os
import shutil
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.processes import run

ROOT = Path(__file__).parents[1]
FOLDERS = ("pipesched", "schedules", "profiles", "simulator", "executor")


@pytest.fixture
def copy(tmp_path):
    """Return a copy of what a wheel is built from: building leaves files behind."""
    setuptools = pytest.importorskip("setuptools", minversion="77", reason="pyproject.toml asks for it")
    assert setuptools
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_a_wheel_has_all_files_of_the_project_under_one_name(copy):
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    built = run([sys.executable, "-m", "pip", "wheel", ".", *offline, "-w", "built"], cwd=copy)
    assert built.returncode == 0, built.stderr
    (wheel,) = (copy / "built").glob("*.whl")
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {
        str(Path(folder, name).relative_to(ROOT))
        for folder, _, files in os.walk(ROOT / "pipesched", followlinks=True)
        for name in files
        if not folder.endswith("__pycache__")
    }
    assert names == files
    assert {"pipesched/__main__.py", "pipesched/executor/__main__.py", "pipesched/profiles/data/conv-epyc.json"} < files
