"""``python -m pipesched``: the command line."""

from pipesched.cli.main import main

if __name__ == "__main__":
    main()
