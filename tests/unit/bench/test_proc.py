"""What is read from /proc: texts as proc(5) describes them, and this process itself."""

import os
import subprocess
import sys
import time

import pytest

from sbus.bench import BenchmarkFailed, proc


def test_the_parent_is_found_behind_any_command_name() -> None:
    assert proc.parse_parent("12 (sh) S 7 12 12 0 -1") == 7
    assert proc.parse_parent("12 (a ) R 9 (b) S 7 12 12 0 -1") == 7


def test_figures_of_a_live_process_and_of_one_that_is_gone() -> None:
    own = os.getpid()
    assert proc.proportional_memory_bytes(own) > 0
    before = proc.context_switches(own)
    time.sleep(0.001)
    assert proc.context_switches(own) > before
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    for read in (proc.proportional_memory_bytes, proc.context_switches):
        with pytest.raises(BenchmarkFailed, match=str(child.pid)):
            read(child.pid)


def test_the_cpu_model_is_the_first_named() -> None:
    assert proc.parse_cpu_model("processor\t: 0\nmodel name\t: A B\n\nmodel name\t: C\n") == "A B"
    assert proc.parse_cpu_model("processor\t: 0\n") == "unknown CPU"


def test_descendants_are_found_however_deep() -> None:
    parents = {1: 0, 10: 1, 11: 10, 12: 10, 13: 12, 20: 1, 21: 20}
    assert set(proc.descendants(10, parents)) == {10, 11, 12, 13}
    assert proc.descendants(10, parents)[0] == 10
    assert proc.descendants(13, parents) == [13]


def test_the_tree_of_this_process_holds_its_child() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert set(proc.process_tree(os.getpid())) >= {os.getpid(), child.pid}


def test_cpu_time_is_what_the_process_itself_sees() -> None:
    before = time.process_time_ns()
    told = proc.run_time_ns(os.getpid())
    assert before <= told <= time.process_time_ns()


def test_cpu_time_of_a_process_that_is_gone_is_a_failure() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    with pytest.raises(BenchmarkFailed, match=str(child.pid)):
        proc.run_time_ns(child.pid)


def test_the_machine_is_told_in_lines_of_its_own() -> None:
    lines = proc.Machine("CPU", 4, "6.1", "3.11.7", 0.5).lines()
    assert lines == ["machine  CPU, 4 cores, load 0.50", "kernel   6.1, Python 3.11.7"]
