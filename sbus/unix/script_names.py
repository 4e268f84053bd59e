"""The names of scripts, to show to people; the kernel's name of such a process is the interpreter.

The script is found in the arguments of the process, which the process can change at any time. So no
decision may depend on it.

To read the arguments takes a lock of the process's memory. The process can make others wait for
this lock: tens of milliseconds by forking in a loop, for ever by mapping files of a file system of
its own. So no process of a bus reads them. Programs that show names read them in a thread, with a
time limit; after a timeout, they read no arguments for a while.
"""

import re
import threading
import time
from functools import lru_cache
from pathlib import Path

_ANSWER_SECONDS_MAX = 0.05
_PAUSE_SECONDS = 1.0
"""After an answer that did not come in time: hostile processes take 5 % of a reader's time."""
_ARGUMENTS_BYTES_MAX = 4096
_NAME_BYTES_MAX = 64
"""A name of the kernel has at most 15 bytes; a reader needs more of a module's."""
_NAMES_MAX = 4096

_INTERPRETER = re.compile(rb"(python|pypy|perl|ruby|lua|php)[0-9.]*|node|MainThread|(ba|da|z|k)?sh")
"""By the kernel's name for them; newer versions of node are called MainThread."""
_PYTHON = re.compile(rb"(python|pypy)[0-9.]*")
_PYTHON_MODULE = re.compile(rb"-[bBdEhiIOPqRsSuvx]*m(.*)", re.DOTALL)
_NO_SCRIPT = {
    True: re.compile(rb"-|-[bBdEhiIOPqRsSuvx]*c.*", re.DOTALL),
    False: re.compile(rb"-|-[a-zA-Z]*[ceE]|-p|--eval.*|--print.*", re.DOTALL),
}
"""Arguments of Python, and of others, with which the program is no file."""
_WITH_VALUE = {
    True: {b"-X", b"-W"},
    False: {b"-I", b"-O", b"-o", b"+o", b"-r", b"--require", b"--import", b"--rcfile"},
}
"""Arguments with a value, which is the next one."""


def script_name(program: bytes, arguments: bytes) -> bytes:
    """The file or module that the interpreter `program` runs, without its folder; b"" if it is none
    of those that are known here, or runs no script. `arguments` as in /proc/PID/cmdline."""
    if not _INTERPRETER.fullmatch(program):
        return b""
    is_python = _PYTHON.fullmatch(program) is not None
    words = iter(arguments.split(b"\0")[1:])
    for word in words:
        if is_python and (module := _PYTHON_MODULE.fullmatch(word)):
            return (module[1] or next(words, b""))[:_NAME_BYTES_MAX]
        if _NO_SCRIPT[is_python].fullmatch(word):
            return b""
        if word in _WITH_VALUE[is_python]:
            next(words, b"")
        elif word == b"--":
            return _base_name(next(words, b""))
        elif word[:1] not in (b"-", b"+"):
            return _base_name(word)
    return b""


def _base_name(path: bytes) -> bytes:
    return path.rstrip(b"/").rpartition(b"/")[2][:_NAME_BYTES_MAX]


class ScriptNames:
    """Finds and remembers what clients of one bus run."""

    def __init__(self) -> None:
        self._names: dict[int | None, bytes] = {}
        """By the clients' numbers."""
        self._reader: threading.Thread | None = None
        """The newest; while it waits, there is no other."""
        self._pause_until = 0.0

    def name(self, client: int | None, pid: int, program: bytes) -> bytes:
        """What the interpreter `program` runs in the process of a client; b"" if it is no
        interpreter, or that cannot be found out now. Without `client`, it is not remembered."""
        if not _is_interpreter(program):
            return b""
        if client in self._names:
            return self._names[client]
        name = self._look_up(pid, program)
        if client is not None and name is not None:
            if len(self._names) >= _NAMES_MAX:
                self._names.clear()
            self._names[client] = name
        return name or b""

    def _look_up(self, pid: int, program: bytes) -> bytes | None:
        if time.monotonic() < self._pause_until or (self._reader and self._reader.is_alive()):
            return None
        answers: list[bytes] = []
        # A daemon: the program may end while it waits.
        self._reader = threading.Thread(
            target=lambda: answers.append(_read_script_name(pid, program)), daemon=True
        )
        self._reader.start()
        self._reader.join(_ANSWER_SECONDS_MAX)
        if answers:
            return answers[0]
        self._pause_until = time.monotonic() + _PAUSE_SECONDS
        return None


@lru_cache(1024)
def _is_interpreter(program: bytes) -> bool:
    return _INTERPRETER.fullmatch(program) is not None


def _read_script_name(pid: int, program: bytes) -> bytes:
    """b"" also if the process has another name here: then it is not the one that is meant."""
    folder = Path(f"/proc/{pid}")
    try:
        if (folder / "comm").read_bytes() != program + b"\n":
            return b""
        with (folder / "cmdline").open("rb", buffering=0) as arguments:
            return script_name(program, arguments.read(_ARGUMENTS_BYTES_MAX))
    except OSError:
        return b""  # ended, or hidden from this user
