"""Usage errors: typer's complaint about a command line, in one line."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

import typer


def complaint(error: typer.TyperException, command: str) -> str:
    """Return the value, the expectation, and the help page: of `command`, unless the error names a subcommand."""
    text = error.format_message().replace("Value error, ", "got ").replace(" is not one of ", ", expected one of ")
    cause: Any = error.__cause__  # pydantic's, where a value does not fit its option; it knows the value
    if hasattr(cause, "errors"):
        from pipesched.profiles.io import in_our_words

        got = cause.errors()[0]["input"]
        # a limit as a power of ten
        text = re.sub(r"\b1(0{15,})(\.0)?\b", lambda limit: f"1e{len(limit[1])}", text)
        text = in_our_words(text.replace("Input should be ", f"got {got!r}, expected "))
        if str(got).lower().endswith("nan"):  # it is not above any limit either
            text = f"{text.partition(', expected ')[0]}, expected a number"
    context = getattr(error, "ctx", None)
    command = command if context is None else context.command_path
    return f"{text.rstrip('.')}{_advice(text, context)}; see '{command} --help'"


def _advice(text: str, context: Any) -> str:
    """Return advice on the intended option, if it is clear."""
    options = () if context is None else {name for option in context.command.params for name in option.opts}
    extra = re.search(r"unexpected extra argument.* \((?:(\S+\.(?:csv|json))|(\w+))\)", text)
    if extra is not None and extra[1] and "--schedule-file" in options:
        return f"; a schedule? try -f {extra[1]}"
    if extra is not None and extra[2] and "--schedule" in options:
        return f"; a schedule? try -s {extra[2]}"
    choice = re.search(r": (?:got )?'([^']*)', expected one of (.+)$", text)
    if choice is not None:
        near = get_close_matches(choice[1].lower(), re.findall(r"'([^']+)'", choice[2]), n=1, cutoff=0.7)
        return f"; try {near[0]}" if near else ""
    if re.match(r"No such option: --profile\b", text) and context.command.name in ("tune", "plan", "partition"):
        return f"; try 'pipesched {context.command.name} P.json': it stands without --profile"
    if re.match(r"No such option: --gpu\b", text):
        return "; try 'pipesched profile MODEL --gpu h100 --out P.json', and P.json here"
    if text.startswith("No such option: --html") and "--out" in options:
        return "; try --out x.html"
    return ""
