"""Background load: companion processes that run the same model beside a measurement.

The ranks of a pipeline on one machine share its caches, its memory bandwidth and its clock rate; a layer measured alone
would look too fast. A companion is ``python -P -m pipesched.profiles.measuring.background_load MODEL ...``. The
companion receives micro-batch sizes over a pipe, and runs forward and backward repeatedly at the last size. It sends
each size back after the first run at this size, and rests at size 0. The companion ends when the other end of the pipe
is closed or its parent is gone. Its standard output is discarded, because a user's model may print.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import IO, TYPE_CHECKING

from pipesched.profiles import ProfileError
from pipesched.profiles.processes import command, descriptor_as, end_with, environment

if TYPE_CHECKING:
    from pipesched.profiles.measuring.layer_chain import LayerChain
    from pipesched.profiles.measuring.profiler_settings import ProfilerSettings

_READY_S = 120.0
"""Longest time of a companion to start, or to finish its first run at a new size [s]."""
_LAST_BYTES = 4096
"""Bytes at the end of a companion's stderr that are searched for its last line."""


class Companions:
    """Background processes that run `model` on `device` until the ``with`` block ends, in any way."""

    def __init__(self, model: str, count: int, device: str, settings: ProfilerSettings) -> None:
        self._model = model
        self._count = count
        self._arguments = [model, "--device", device, "--dtype", settings.dtype]
        self._arguments += ["--threads", str(settings.threads), "--seed", str(settings.seed)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
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

    def use(self, microbatch_size: int, count: int | None = None) -> None:
        """Run companions at `microbatch_size`; return when all of them run at this size.

        Args:
            microbatch_size: Samples, at least 1.
            count: Number of companions that run; the others rest (default: all).

        Raises:
            ProfileError: A companion failed or took too long.
        """
        running = len(self._connections) if count is None else count
        sizes = [microbatch_size if index < running else 0 for index in range(len(self._connections))]
        for connection, errors, size in zip(self._connections, self._errors, sizes, strict=True):
            try:
                connection.send_bytes(str(size).encode())
            except OSError as error:
                raise self._fault(errors) from error
        for connection, errors, size in zip(self._connections, self._errors, sizes, strict=True):
            if not connection.poll(_READY_S) or _received(connection) != size:
                raise self._fault(errors)

    def _start(self) -> None:
        connection, child_end = Pipe()
        self._connections.append(connection)
        self._errors.append(tempfile.TemporaryFile())  # noqa: SIM115  # closed by _stop
        ends = [str(child_end.fileno()), str(os.getpid())]
        with child_end:
            self._processes.append(
                subprocess.Popen(  # noqa: S603  # our own module, no shell
                    command("pipesched.profiles.measuring.background_load", *self._arguments, "--ends", *ends),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors[-1],
                    env=environment(),
                    pass_fds=[child_end.fileno()],
                )
            )

    def _fault(self, errors: IO[bytes]) -> ProfileError:
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = errors.read().decode(errors="replace").split("\n")
        reason = next((line.strip() for line in reversed(lines) if line.strip()), f"no answer in {_READY_S:.0f} s")
        return ProfileError(
            f"companions of {self._model}: got {reason[:300]}, expected processes that run the model; name the model "
            "so that resolve_model finds it, or use companions=0"
        )

    def _stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        for connection, errors in zip(self._connections, self._errors, strict=True):
            connection.close()
            errors.close()
        self._processes, self._connections, self._errors = [], [], []


def _received(connection: Connection) -> int | None:
    """Return the next size; None if the other end is gone."""
    try:
        return int(connection.recv_bytes())
    except (EOFError, OSError):
        return None


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pipesched.profiles.measuring.background_load")
    parser.add_argument("model")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--ends", type=int, nargs=2, required=True, help="descriptor of the pipe, parent")
    arguments = parser.parse_args()

    descriptor, parent = arguments.ends
    end_with(parent)  # before slow imports
    import torch

    from pipesched.profiles.measuring.computing import computing
    from pipesched.profiles.measuring.layer_chain import LayerChain
    from pipesched.profiles.models import resolve_model, torch_dtype

    device = torch.device(arguments.device)
    make_chain = partial(
        LayerChain,
        resolve_model(arguments.model),
        seed=arguments.seed,
        dtype=torch_dtype(arguments.dtype),
        device=device,
    )
    with computing(arguments.threads, [device]):
        _work(make_chain, Connection(descriptor))


def _work(make_chain: Callable[[int], LayerChain], connection: Connection) -> None:
    """Run the model at the last received size; send each size back after its first run, and rest at size 0."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    size, chain = _received(connection), None
    while size is not None:
        if size:
            chain = chain or make_chain(size)
            inputs, targets = chain.batch(size)
            chain.run(inputs, targets)
            _wait(chain.device)
        connection.send_bytes(str(size).encode())
        with descriptor_as(2, nowhere):  # otherwise the output of a model in every run would fill the disk
            while chain is not None and size and not connection.poll():
                chain.run(inputs, targets)
                _wait(chain.device)
        size = _received(connection)


def _wait(device: object) -> None:
    """Wait for the accelerator, so that its queue stays short."""
    import torch

    if isinstance(device, torch.device) and device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    _main()
