"""What is read from /proc: texts as proc(5) describes them, and this process itself."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sbus.bench import BenchmarkFailed, proc


def test_figures_of_a_live_process_and_of_one_that_is_gone() -> None:
    own = os.getpid()
    assert proc.proportional_memory_bytes(own) > 0
    before = proc.context_switches(own)
    time.sleep(0.001)
    assert proc.context_switches(own) > before
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    for read in (proc.proportional_memory_bytes, proc.context_switches, proc.run_time_ns):
        with pytest.raises(BenchmarkFailed, match=str(child.pid)):
            read(child.pid)


def test_the_cpu_model_is_the_first_named() -> None:
    assert proc.parse_cpu_model("processor\t: 0\nmodel name\t: A B\n\nmodel name\t: C\n") == "A B"
    assert proc.parse_cpu_model("processor\t: 0\n") == "unknown CPU"


def test_a_tree_has_all_descendants_whatever_they_are_called(tmp_path: Path) -> None:
    name = tmp_path / "a) S 1 (b"
    name.symlink_to("/bin/sh")
    shell = [str(name), "-c", "(cat; :); :"]
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"all are there")
        child.stdin.flush()
        child.stdout.read(1)
        tree = proc.process_tree(os.getpid())
        assert tree[0] == os.getpid()
        names = [Path(f"/proc/{pid}/comm").read_text() for pid in proc.process_tree(child.pid)]
        assert names == [f"{name.name}\n", f"{name.name}\n", "cat\n"]
        assert child.pid in tree


def test_a_process_that_has_ended_is_in_no_tree() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert proc.process_tree(child.pid) == []
        assert child.pid not in proc.process_tree(os.getpid())


def test_cpu_time_is_what_the_process_itself_sees() -> None:
    before = time.process_time_ns()
    told = proc.run_time_ns(os.getpid())
    assert before <= told <= time.process_time_ns()
