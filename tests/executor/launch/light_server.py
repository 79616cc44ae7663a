"""A fork server that loads nothing but the module asked for, after some seconds, and processes of it."""

import os
import signal
import socket
import sys
import time
from importlib import import_module

from pipesched.executor.launch.fork_server import Server


def main(arguments):
    """Print the arguments and a variable; then wait for a signal if that is asked for."""
    print(*arguments, os.environ.get("WORD"), flush=True)
    if arguments == ["wait"]:
        signal.pause()
    return len(arguments)


def serve():
    loads_s, connection, launcher = map(float, sys.argv[1:4])

    def load():
        time.sleep(loads_s)
        return lambda module, arguments: import_module(module).main(arguments)

    Server(socket.socket(fileno=int(connection)), int(launcher), load).serve()


if __name__ == "__main__":
    serve()
    os._exit(0)
