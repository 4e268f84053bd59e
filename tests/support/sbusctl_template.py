"""The same as `sbusd_template`, for bridges: `python -m` this file FD."""

import gc
import socket
import sys

import sbus.bridge.bridge  # noqa: F401 (what takes long)
from sbus.cli.sbusctl.command import main
from tests.support.sbusd_template import serve

if __name__ == "__main__":
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])), main)
