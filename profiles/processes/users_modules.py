"""Import modules of the user by names that the user typed; names in files are never imported."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pipesched.profiles.processes.child_process import MODEL_PATH


@contextmanager
def users_folders(*first: Path) -> Iterator[None]:
    """Import from the working directory first, as plain Python does; after the block, import from it last.

    Imports of the user's code at run time then work, and a user's ``queue.py`` does not hide the standard library's.

    Args:
        first: Folders before the working directory inside the block, such as the folder of a script.
    """
    here = str(Path.cwd())
    before = [*map(str, first), here]
    elsewhere = filter(None, os.environ.get(MODEL_PATH, "").split(os.pathsep))
    sys.path += [folder for folder in dict.fromkeys(elsewhere) if folder not in sys.path]
    sys.path[:0] = before
    try:
        yield
    finally:
        for folder in before:
            sys.path.remove(folder)
        if here not in sys.path:
            sys.path.append(here)


def users_module(name: str) -> ModuleType:
    """Return the module ``package.module``, or the module in the file ``path.py``, reloaded if the file has changed.

    Call the function within `users_folders`. Exceptions of the module are passed on.
    """
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(os.path.realpath(name))
    changed_ns = path.stat().st_mtime_ns
    module = sys.modules.get(str(path))
    if module is None or module.__dict__.get("__changed_ns__") != changed_ns:
        module = _module_of(path)
        module.__dict__["__changed_ns__"] = changed_ns
    return module


def _module_of(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(str(path), path)
    assert specification is not None, "its name ends in .py"
    assert specification.loader is not None, "its name ends in .py"
    module = importlib.util.module_from_spec(specification)
    sys.modules[str(path)] = module  # dataclasses look up their module here
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[str(path)]
        raise
    return module
