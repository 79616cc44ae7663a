"""``pipesched``: simulate, run and compare pipeline schedules."""

from __future__ import annotations

import os
import sys

import typer
from click.exceptions import Abort, ClickException

from pipesched.check import check
from pipesched.compare import compare
from pipesched.errors import BAD_INPUT, FINE, NOT_THERE, RANK_FAILED, InputError, NotThereError
from pipesched.gantt import gantt
from pipesched.list import list_schedules
from pipesched.profile import profile
from pipesched.profile_links import profile_links
from pipesched.run import run
from pipesched.show import show
from pipesched.simulate import simulate
from pipesched.trace import trace
from pipesched.verify import verify

app = typer.Typer(
    help="Pipeline-parallel schedules: describe once, simulate, run, compare.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("list")(list_schedules)
app.command()(show)
app.command()(check)
app.command()(simulate)
app.command()(compare)
app.command()(gantt)
app.command()(trace)
app.command()(profile)
app.command("profile-links")(profile_links)
app.command()(run)
app.command()(verify)


def main() -> None:
    """Run the command line; a mistake of the user is one line on stderr, never a traceback."""
    try:
        code = app(standalone_mode=False) or FINE
    except (ClickException, ValueError, NotThereError, ImportError, Abort, KeyboardInterrupt, BrokenPipeError) as error:
        code = _say(error)
    sys.stdout.flush()
    sys.exit(code)


def _say(error: BaseException) -> int:
    """Print what went wrong and return the exit code; what nobody foresaw goes on as it is."""
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    if isinstance(error, Abort | KeyboardInterrupt):
        return _print("stopped", 130)
    if isinstance(error, ClickException):
        return _print(error.format_message(), BAD_INPUT)
    if isinstance(error, NotThereError):
        return _print(str(error), NOT_THERE)
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return _print(f"{error.name} is not installed; pip install {error.name}", NOT_THERE)
    if isinstance(error, InputError):
        return _print(str(error), BAD_INPUT)
    from profiles.errors import ProfileError
    from schedules.schedule import ScheduleError
    from simulator.errors import SimulationError

    if isinstance(error, ScheduleError | ProfileError | SimulationError):
        return _print(str(error), BAD_INPUT)
    if type(error).__module__.startswith("executor."):
        from executor.errors import RankFailed

        return _print(str(error), RANK_FAILED if isinstance(error, RankFailed) else BAD_INPUT)
    raise error


def _print(text: str, code: int) -> int:
    print(f"pipesched: {' '.join(text.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
