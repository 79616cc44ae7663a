"""The folder of a process that was killed is removed by the next one, and no other is."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from pipesched.profiles.processes import owned_folder
from tests.processes import started

ROOT = Path(__file__).parents[3]
HOLDING = """
import time
from pipesched.profiles.processes import owned_folder
with owned_folder() as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return an empty folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def abandoned(place):
    """Return a folder as a killed process leaves it: a copy, on whose owner file there is no lock."""
    with owned_folder() as folder:
        (folder / "file").write_text("x")
        return shutil.copytree(folder, place / "pipesched-abandoned")


def test_a_folder_is_there_for_this_user_alone_and_gone_in_the_end(place):
    with owned_folder() as folder:
        assert folder.parent == place
        assert folder.stat().st_mode & 0o777 == 0o700
        with owned_folder() as second:
            assert folder.is_dir()
            assert second != folder
    assert list(place.iterdir()) == []


@pytest.mark.slow
def test_the_folder_of_a_process_goes_with_the_next_run_once_it_is_killed_and_not_while_it_is_stopped(place):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(place)}
    with started([sys.executable, "-c", HOLDING], env=environment, stdout=subprocess.PIPE, text=True) as process:
        folder = Path(process.stdout.readline().strip())
        process.send_signal(signal.SIGSTOP)
        with owned_folder():
            assert (folder / "file").exists(), "its owner lives"
        process.kill()
        process.wait()
        assert (folder / "file").exists()
    with owned_folder():
        assert not folder.exists()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("change", ["machine", "user", "file", "link", "name"])
def test_what_others_have_left_stays(change, abandoned, place, monkeypatch):
    left, owner = abandoned, abandoned / "owner"
    match change:
        case "machine":
            owner.write_bytes(b"elsewhere " + owner.read_bytes())
        case "user":
            user = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        case "file":
            owner.unlink()
        case "link":
            target = left.rename(place / "elsewhere")
            left.symlink_to(target)
        case "name":
            left = left.rename(place / "of-a-user")
    with owned_folder():
        pass
    assert (left / "file").exists()


def test_an_owner_file_that_is_a_pipe_or_a_link_keeps_nobody(place):
    for name in ("pipesched-pipe", "pipesched-link"):
        (place / name).mkdir()
    os.mkfifo(place / "pipesched-pipe" / "owner")
    (place / "pipesched-link" / "owner").symlink_to("/dev/zero")
    (place / "pipesched-file").touch()
    with owned_folder():
        pass
    assert len(list(place.iterdir())) == 3


def test_many_at_once_remove_what_is_left_and_nothing_of_each_other(abandoned, place):
    shutil.copytree(abandoned, place / "pipesched-another")
    faults = []

    def hold():
        for _ in range(20):
            with owned_folder() as folder:
                (folder / "file").write_text("x")
                if not (folder / "file").exists():
                    faults.append(folder)

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert list(place.iterdir()) == []
