"""Processes that run the same model beside a measurement.

The ranks of a pipeline on one machine share its caches, its memory bandwidth and its clock rate; a layer measured
alone would look faster than it will be. ``python -m pipesched.profiles.companions MODEL ...`` is one companion: it
reads micro-batch sizes from stdin, runs forward and backward over and over at the last one it read, says
``ready <size>`` after the first run of each, and ends when stdin does, which is also when its parent dies.
"""

from __future__ import annotations

import argparse
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import IO

from pipesched.profiles.errors import ProfileError

_READY_S = 120.0
"""How long a companion may take to start, or to finish its first run at a new size."""


class Companions:
    """Background processes that run `model` until the ``with`` block is left, however it is left."""

    def __init__(self, model: str, count: int, *, dtype: str, device: str, threads: int, seed: int) -> None:
        self._model = model
        self._count = count
        self._arguments = [model, "--dtype", dtype, "--device", device, "--threads", str(threads), "--seed", str(seed)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._errors: list[IO[bytes]] = []

    def __enter__(self) -> Companions:
        try:
            for _ in range(self._count):
                self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def use(self, microbatch_size: int) -> None:
        """Let every companion run at `microbatch_size`; return when all do.

        Raises:
            ProfileError: One failed or took too long.
        """
        for process, errors in zip(self._processes, self._errors, strict=True):
            assert process.stdin is not None
            try:
                process.stdin.write(f"{microbatch_size}\n".encode())
                process.stdin.flush()
            except BrokenPipeError as error:
                raise self._fault(errors) from error
        for process, errors in zip(self._processes, self._errors, strict=True):
            self._await_ready(process, errors)

    def _start(self) -> None:
        path = os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path]))
        self._errors.append(tempfile.TemporaryFile())  # noqa: SIM115  # closed by _stop
        self._processes.append(
            subprocess.Popen(  # noqa: S603  # our own module, no shell
                [sys.executable, "-m", "pipesched.profiles.companions", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors[-1],
                env=os.environ | {"PYTHONPATH": path},
                bufsize=0,
            )
        )

    def _await_ready(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], _READY_S)
        if not readable or not process.stdout.readline().startswith(b"ready"):
            raise self._fault(errors)

    def _fault(self, errors: IO[bytes]) -> ProfileError:
        errors.seek(0)
        lines = errors.read().decode(errors="replace").split("\n")
        reason = next((line.strip() for line in reversed(lines) if line.strip()), f"no answer in {_READY_S:.0f} s")
        return ProfileError(
            f"companions of {self._model}: got {reason[:300]}, expected them to run it; "
            "name the model so that resolve_model finds it, or use companions=0"
        )

    def _stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        for errors in self._errors:
            errors.close()
        self._processes, self._errors = [], []


def _read_sizes(sizes: queue.SimpleQueue[int | None]) -> None:
    """Put each line of stdin in `sizes`, then None at its end."""
    for line in sys.stdin:
        sizes.put(int(line))
    sizes.put(None)


def _main() -> None:
    import torch

    from pipesched.profiles.chain import Chain
    from pipesched.profiles.models.resolve import resolve_model

    parser = argparse.ArgumentParser(prog="python -m pipesched.profiles.companions")
    parser.add_argument("model")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    chain = Chain(
        resolve_model(arguments.model), seed=arguments.seed, dtype=getattr(torch, arguments.dtype), device=device
    )
    sizes: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    threading.Thread(target=_read_sizes, args=(sizes,), daemon=True).start()
    size = sizes.get()
    while size is not None:
        inputs, targets = chain.batch(size)
        chain.run(inputs, targets, _no_mark)
        _wait(device)
        sys.stdout.write(f"ready {size}\n")
        sys.stdout.flush()
        while sizes.empty():
            chain.run(inputs, targets, _no_mark)
            _wait(device)
        size = sizes.get()


def _wait(device: object) -> None:
    """Let the accelerator catch up, so that no endless queue builds up before it."""
    import torch

    if isinstance(device, torch.device) and device.type == "cuda":
        torch.cuda.synchronize(device)


def _no_mark() -> None:
    """Note nothing."""


if __name__ == "__main__":
    _main()
