"""The subcommands, a file each."""

__all__: list[str] = []
