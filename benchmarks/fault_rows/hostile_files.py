"""R6: files that try to run code, write elsewhere, fill the memory, or never end."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fault_rows.attempt import Attempt, attempt, contents
from fault_rows.row import Row, Section
from fault_rows.specimens import Specimen, specimens
from fault_rows.workers import worked_off

NUM_WORKERS = 2
SPOOR = "spoor"
"""File that code from a hostile file would write into the folder of the command."""
CODE = f"__import__('pathlib').Path('{SPOOR}').touch()"
MARKUP = "<img src=x onerror=alert(1)></script><script>alert(1)</script>"
TENSOR = "weights.0.linear.weight"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e"


class _Touch:
    """An object that writes the file `SPOOR` when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str, int], int], tuple[str, int]]:
        return os.open, (SPOOR, os.O_CREAT)


def _bomb(path: Path, _: bytes) -> None:
    with gzip.open(path, "wb", compresslevel=9) as file:
        blanks = b" " * 2**20
        file.write(b'{"traceEvents": [')
        for _mebibyte in range(1023):
            file.write(blanks)


def _fifo(path: Path, _: bytes) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path, _: bytes) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path, _: bytes) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _link(target: str) -> Callable[[Path, bytes], None]:
    def make(path: Path, _: bytes) -> None:
        path.unlink()
        path.symlink_to(target)

    return make


def _every_text(value: str) -> Callable[[Path, bytes], None]:
    """Return a function that changes every text of a JSON file to `value`."""

    def changed(part: object) -> object:
        match part:
            case dict():
                return {key: changed(inner) for key, inner in part.items()}
            case list():
                return [changed(inner) for inner in part]
            case str():
                return value
        return part

    def make(path: Path, whole: bytes) -> None:
        try:
            text = "\n".join(json.dumps(changed(json.loads(line))) for line in _documents(whole))
        except ValueError:
            text = whole.decode(errors="surrogateescape").replace("block 1", value).replace(TENSOR, value)
        path.write_bytes(text.encode(errors="surrogateescape"))

    return make


def _names_only(value: str) -> Callable[[Path, bytes], None]:
    """Return a function that changes only the names in a JSON file, so that the file stays valid."""

    def make(path: Path, whole: bytes) -> None:
        text = whole.decode(errors="surrogateescape")
        for name in ("1f1b", "zb_h1", "embedding", "block 1", "block 2", TENSOR):
            text = text.replace(json.dumps(name), json.dumps(value)).replace(f"\n{name},", f'\n"{value}",')
        path.write_bytes(text.encode(errors="surrogateescape"))

    return make


def _documents(whole: bytes) -> list[bytes]:
    return whole.splitlines() if whole.count(b"\n{") else [whole]


def _bytes(data: bytes) -> Callable[[Path, bytes], None]:
    def make(path: Path, _: bytes) -> None:
        path.write_bytes(data)

    return make


ATTACKS: dict[str, Callable[[Path, bytes], None]] = {
    "a pickle": _bytes(pickle.dumps(_Touch())),
    "a pickle in base 64 as YAML": _bytes(b"!!python/object/apply:os.open [" + SPOOR.encode() + b", 64]\n"),
    "an expression": _bytes(CODE.encode()),
    "every text is code": _every_text(CODE),
    "every text names a function": _every_text("os:system"),
    "every text leads elsewhere": _every_text(f"../work/../{SPOOR}"),
    "markup in names": _names_only(MARKUP),
    "escapes in names": _names_only(ESCAPES),
    "2^20 brackets": _bytes(b"[" * 2**20),
    "2^20 nested objects": _bytes(b'{"a":' * 2**20),
    "a number of 10^6 digits": _bytes(b"9" * 10**6),
    "10^6 commas": _bytes(b"," * 10**6),
    "a gigabyte of blanks in gzip": _bomb,
    "a link to an endless device": _link("/dev/zero"),
    "a link to a device of chance": _link("/dev/urandom"),
    "a link to itself": _loop,
    "a pipe that nobody writes": _fifo,
    "a folder": _folder,
}


def lines(count: int) -> Section:
    """Yield the section on the first `count` attacks on every format."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kinds = specimens(folder)
        whole = contents(folder)
        names = [*ATTACKS][:count]

        def tried(index: int) -> list[tuple[dict[str, Any], str]]:
            return [(asdict(result), fault) for result, fault in _tries(kinds, whole, ATTACKS[names[index]])]

        worked = worked_off(tried, len(names), NUM_WORKERS)
        tries = {
            what: [(Attempt(**result), fault) for result, fault in results]
            for what, results in zip(names, worked, strict=True)
        }
    yield "| the file is | tries | refused | read | slowest | most memory | wrong |"
    yield "|---|---|---|---|---|---|---|"
    failures = []
    for what, results in tries.items():
        wrong = [(result, fault) for result, fault in results if fault]
        failures += [
            f"- {what}: {fault}: `{' '.join(result.arguments)}`, {result.errors[-200:]!a}" for result, fault in wrong
        ]
        codes = [result.exit_code for result, _ in results]
        slowest_s = max(result.seconds for result, _ in results)
        most_bytes = max(result.peak_bytes for result, _ in results)
        yield (
            f"| {what} | {len(results)} | {len(codes) - codes.count(0)} | {codes.count(0)} "
            f"| {slowest_s:.1f} s | {most_bytes / 2**20:.0f} MiB | {len(wrong)} |"
        )
    yield ""
    yield from failures
    return not failures


def _tries(
    kinds: Sequence[Specimen], whole: dict[str, bytes], make: Callable[[Path, bytes], None]
) -> Iterator[tuple[Attempt, str]]:
    """Yield the result of every command on the file, and its fault."""
    for kind in kinds:
        for reader in kind.readers:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                for file, data in whole.items():
                    (folder / file).parent.mkdir(parents=True, exist_ok=True)
                    (folder / file).write_bytes(data)
                make(folder / kind.name, whole[kind.name])
                kind.then(folder)
                result = attempt(reader, folder, kind.run)
                yield result, _fault(result, folder)


def _fault(result: Attempt, folder: Path) -> str:
    """Return the fault of a result: as for any bad input, or code that ran, or markup that a page would run."""
    if any(SPOOR in Path(name).name for name in result.changed):
        return "its code ran"
    if any("<script>alert" in page.read_text() for page in folder.glob("new*.html")):
        return "markup"
    return result.misbehaviour()


ROW = Row(
    title="R6: hostile files",
    goal="nothing is run or written elsewhere; at most 5 s and 1 GiB; one line",
    count=len(ATTACKS),
    lines=lines,
)
