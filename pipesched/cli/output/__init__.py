"""The output of the commands: on a terminal, and in files."""

__all__: list[str] = []
