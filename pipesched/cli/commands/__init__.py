"""Subcommands, a file each, read their options, call the workflows and print or write the results."""

__all__: list[str] = []
