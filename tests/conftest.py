"""The quick tier, and how hypothesis draws: a property is judged by its result, however busy the machine is."""

import gc
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.properties import FEW, QUICK

settings.register_profile("patient", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(QUICK, settings.get_profile("patient"), max_examples=FEW)

TESTS = Path(__file__).parent
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False  # all processes of tests keep bytecode, whatever the environment says

MEMORY = Path("/dev/shm")
"""Where the folders of tests lie if there is room: no test waits for a disk that flushes."""
ROOM_BYTES = 4 * 2**30
"""Free memory from which on folders of tests lie in it; a run of all tests fills 5 % of that."""
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

_NOT_QUICK = (
    "benchmarks", "docs", "executor", "gpu", "test_wheel.py",
    "cli/test_*_command*.py", "cli/test_tune_*.py", "cli/test_tables.py", "cli/test_shown_names.py",
    "cli/test_model_trust.py", "cli/test_outside_files.py", "cli/test_bad_input.py", "cli/test_estimated_costs.py",
    "cli/test_notes_and_files.py",
    "profiles/measuring/test_equal_layers.py", "profiles/measuring/test_profiler.py",
    "profiles/measuring/test_several_tensors.py", "profiles/measuring/test_stage_bytes.py",
    "profiles/models/test_built_where_it_lives.py", "profiles/models/test_library_models.py",
    "profiles/models/test_traced_modules.py",
    "simulator/optimum/test_memory_limits.py", "simulator/optimum/test_order_search.py",
    "simulator/planner/test_layouts.py", "workflows/test_plan_layout.py",
    "workflows/pipelines", "workflows/simulating/test_balanced_cuts.py", "workflows/training", "workflows/what_if",
)  # fmt: skip
NOT_QUICK = {path for pattern in _NOT_QUICK for path in TESTS.glob(pattern)}
"""Folders and files that the quick tier leaves out: they start processes, train, trace, search or run commands."""

_PROCESS_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")
_is_process_refused = False


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="run the unit tests: no process, few examples of a property")
    parser.addoption("--write-messages", action="store_true", help="write what the command line says of bad input anew")


def pytest_configure(config):
    settings.load_profile(QUICK if config.getoption("quick") else "patient")


def pytest_ignore_collect(collection_path, config):
    return (config.getoption("quick") and collection_path in NOT_QUICK) or None


def pytest_collection_modifyitems(config, items):
    """Leave out slow tests of the quick tier; else run their files first, so that none is waited for at the end."""
    if config.getoption("quick"):
        left_out = [item for item in items if is_slow(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not is_slow(item)]
    slow_files = {item.path for item in items if is_slow(item)}
    items.sort(key=lambda item: item.path not in slow_files)


def pytest_collection_finish():
    """Spare the collector of cycles thousands of tests, which stay until the end."""
    gc.collect()
    gc.freeze()


def is_slow(item):
    return any(item.get_closest_marker(name) for name in ("slow", "distributed"))


@pytest.fixture(autouse=True)
def _no_process_in_a_quick_test(request):
    """Refuse to start a process where no marker says that a test starts one."""
    global _is_process_refused
    _is_process_refused = request.config.getoption("quick")
    yield
    _is_process_refused = False


def _refuse_processes(event, _):
    if _is_process_refused and event in _PROCESS_STARTS:
        raise RuntimeError("a test that starts a process is marked slow or distributed")


sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for name in sorted(set(re.findall(r"\S+/pipesched-standstill-\w+\.txt", report.longreprtext))):
            if Path(name).is_file():
                report.sections.append((f"{name} of {item.name}", Path(name).read_text(errors="replace")))
    return report
