"""Options for several schedules at once: each gets the options that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pipesched.cli.errors import InputError

if TYPE_CHECKING:
    from pipesched.cli.options.schedule_options import ScheduleOptions
    from pipesched.schedules.builders import Entry


def schedule_names(text: str) -> tuple[str, ...]:
    """Return the schedules in a list as ``gpipe,Schedule1F1B``, each once, by their own names.

    Raises:
        ScheduleError: A schedule does not exist.
    """
    from pipesched.workflows.arguments import entry_of

    return tuple(dict.fromkeys(entry_of(name).name for name in text.split(",") if name))


def options_of_each(names: Sequence[str], options: ScheduleOptions) -> dict[str, ScheduleOptions]:
    """Return for each of the `names` in the catalogue the options that it takes.

    Raises:
        InputError: An option that none of them takes.
        ScheduleError: A schedule does not exist.
    """
    from pipesched.cli.options.schedule_options import parse_settings
    from pipesched.workflows.arguments import entry_of

    entries = {name: entry_of(name) for name in names}
    settings = [setting for line in options.settings or [] for setting in line.split(",")]
    for setting in settings:
        if not any(_takes(entry, setting) for entry in entries.values()):
            raise InputError(
                f"--set: got {setting}, expected key=value of a schedule here, a list as replicas=2:1:1; "
                "see 'pipesched list'"
            )
    taken = {name: [setting for setting in settings if _takes(entry, setting)] for name, entry in entries.items()}
    if options.chunks is not None and not any(
        entry.traits.takes_chunks
        or options.chunks == entry.chunks_with(None, parse_settings(taken[name], entry.parameters))
        for name, entry in entries.items()
    ):
        raise InputError(f"-v: got {options.chunks}, expected a schedule that takes chunks; try interleaved")
    return {
        name: replace(
            options, schedule=name, chunks=options.chunks if entry.traits.takes_chunks else None, settings=taken[name]
        )
        for name, entry in entries.items()
    }


def _takes(entry: Entry, setting: str) -> bool:
    return setting.partition("=")[0].strip() in [parameter.name for parameter in entry.parameters]
