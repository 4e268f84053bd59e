"""A process that has imported what a recorder needs, and forks recorders: `python -m` this file.

A line of JSON on standard input is either the arguments of `sbusctl` for a new recorder, with the
file for its standard error and how large files may grow, answered with its pid; or a pid, answered
with its exit status once it has ended, negative for a signal. It has one thread, so forking is
sound.
"""

import json
import os
import resource
import sys

import sbus.pipeline.recorder.recorder  # noqa: F401 (what takes long)
from sbus.cli.sbusctl.command import main
from sbus.cli.sbusctl.command import sbusctl as _loaded  # noqa: F401


def serve() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, int):
            _, status = os.waitpid(asked, 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            become_recorder(**asked)
        print(pid, flush=True)


def become_recorder(
    arguments: list[str], stderr: str, notify: str, file_bytes_max: int | None
) -> None:
    if file_bytes_max is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, descriptor in ((0, null), (1, null), (2, errors)):
        os.dup2(descriptor, number)
    os.environ["NOTIFY_SOCKET"] = notify
    sys.argv[1:] = arguments
    status = 1
    try:
        main()
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
