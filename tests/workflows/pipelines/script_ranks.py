"""One rank of a script, as torchrun starts it."""

import os
import runpy


def main(arguments):
    os.chdir(arguments[0])
    runpy.run_path("script.py", run_name="__main__")
    return 0
