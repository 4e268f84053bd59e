"""The names of scripts, from the arguments of interpreters."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sbus.unix import script_names
from sbus.unix.peer_process import program_name
from sbus.unix.script_names import ScriptNames, script_name

WAIT = "import sys; print(flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    ("program", "arguments", "name"),
    [
        (b"python", "python my_script.py", b"my_script.py"),
        (
            b"python3.12",
            "python3.12 -u -X dev -Wd -W error /srv/a/my_script.py -m no",
            b"my_script.py",
        ),
        (b"python3", "python3 -m my_module --name value", b"my_module"),
        (b"python3", "python3 -um package.module", b"package.module"),
        (b"python3", "python3 -mmodule", b"module"),
        (b"python3", "python3 -c code script", b""),
        (b"python3", "python3 - script", b""),
        (b"python3", "python3", b""),
        (b"python3", "python3 -m", b""),
        (b"python3", "python3 folder/", b"folder"),
        (b"pypy3", "pypy3 -- -c.py", b"-c.py"),
        (b"perl", "perl -w -I lib bin/report.pl", b"report.pl"),
        (b"perl", "perl -lane code file", b""),
        (b"ruby", "ruby -r json tool.rb", b"tool.rb"),
        (b"node", "node --inspect server.js -p", b"server.js"),
        (b"MainThread", "node --require hook server.js", b"server.js"),
        (b"node", "node --eval=code file", b""),
        (b"bash", "bash -o pipefail /opt/run.sh x", b"run.sh"),
        (b"bash", "-bash", b""),
        (b"sh", "sh -ec code", b""),
        (b"lamps", "lamps my_script.py", b""),
        (b"python-like", "python-like my_script.py", b""),
        (b"", "python my_script.py", b""),
    ],
)
def test_a_script_is_named_by_its_file_or_module(
    program: bytes, arguments: str, name: bytes
) -> None:
    words = arguments.encode().split(b" ")
    assert script_name(program, b"".join(word + b"\0" for word in words)) == name


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (b"", b""),
        (b"\0\0\0", b""),
        (b"no end", b""),
        (b"python\0/\0", b""),
        (b"python\0a\n\x1b[2J\0", b"a\n\x1b[2J"),
        (b"python\0-m" + b"x" * 5000, b"x" * 64),
        (b"python\0" + b"x" * 5000, b"x" * 64),
    ],
)
def test_any_bytes_have_a_short_name_or_none(arguments: bytes, name: bytes) -> None:
    assert script_name(b"python", arguments) == name


@contextmanager
def running_script(script: Path, *words: str) -> Iterator[int]:
    script.write_text(WAIT)
    arguments = [sys.executable, *(words or [str(script)])]
    with subprocess.Popen(
        arguments, cwd=script.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.mark.parametrize("words", [[], ["-m", "my_script"]], ids=["file", "module"])
def test_a_running_script_has_its_name_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(script_names, "_ANSWER_SECONDS_MAX", 10.0)
    names = ScriptNames()
    with running_script(tmp_path / "my_script.py", *words) as pid:
        program = program_name(pid)
        name = words[-1].encode() if words else b"my_script.py"
        assert names.name(1, pid, program) == name
        assert names.name(2, pid, b"python9") == b"", "that is another process"
        assert names.name(None, pid, program) == name
        assert names.name(3, pid, b"lamps") == b""
    assert names.name(1, pid, program) == name, "the client is the same"
    assert names.name(None, pid, program) == b""


def test_processes_that_do_not_answer_take_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one of them holds its memory, no other is asked; afterwards, they are again."""
    released, reads = threading.Event(), []

    def read(pid: int, _: bytes) -> bytes:
        reads.append(pid)
        if pid == 1:
            released.wait()
        return b"script.py"

    monkeypatch.setattr(script_names, "_read_script_name", read)
    monkeypatch.setattr(script_names, "_PAUSE_SECONDS", 0.0)
    names = ScriptNames()
    assert names.name(1, 1, b"python") == b""
    for client in range(2, 1000):
        assert names.name(client, client, b"python") == b""
    assert reads == [1]
    released.set()
    deadline = time.monotonic() + 60
    while not (name := names.name(2, 2, b"python")):
        assert time.monotonic() < deadline
    assert name == b"script.py"
