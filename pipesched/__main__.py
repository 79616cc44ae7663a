"""``python -m pipesched``: the command line."""

import sys


def main() -> None:
    """Run the command line, which may be interrupted while it is imported, too."""
    try:
        from pipesched.cli.main import main as run
    except KeyboardInterrupt:
        print("pipesched: stopped", file=sys.stderr)
        sys.exit(130)  # as STOPPED of pipesched.cli.errors, which may not be there yet
    run()


if __name__ == "__main__":
    main()
