"""The options that subcommands share, and their parsing."""

__all__: list[str] = []
