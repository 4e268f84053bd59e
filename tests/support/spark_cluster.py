"""A Spark cluster of a master, workers and drivers that share no directory.

Each has a machine of its own: a mount and a process namespace, where a directory of the test is
empty but for one of the machine itself. What is installed is the same on all of them.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from sbus.pipeline.java import java_home
from tests.support.bus import PROJECT
from tests.support.object_storage import wait_for_line
from tests.support.spark_program import JAVA_FOR_TESTS

SPARK_CLASS = Path(pyspark.__file__).parent / "bin/spark-class"
NAMESPACES = ("unshare", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child")
MACHINE = """
mount -t tmpfs machine "$1" && mkdir "$1/$2" && cd "$1/$2" && shift 2 && TMPDIR=$PWD exec "$@"
"""


class Cluster:
    """Its machines keep what they have to themselves; `directory` holds the logs of all."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self.master = ""
        self._environment = {
            **os.environ,
            **environment,
            JAVA_FOR_TESTS[0]: JAVA_FOR_TESTS[1],
            "JAVA_HOME": str(java_home(os.environ)),
            "PYTHONPATH": str(PROJECT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    @contextmanager
    def machine(self, name: str, *command: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Run a command on a machine; all of its processes have ended after the block."""
        on_machine = ["sh", "-c", MACHINE, "machine", str(self.directory), name, *command]
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                [*NAMESPACES, *on_machine], env=self._environment, stdout=log, stderr=log
            )
            with process:
                try:
                    yield process
                finally:
                    process.kill()

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def run(self, name: str, command: Sequence[str], seconds_max: float) -> None:
        """Run a program that uses the cluster; it must succeed."""
        with self.machine(name, *command) as process:
            status = process.wait(seconds_max)
        assert status == 0, f"{shlex.join(command)}: {self.log(name).read_text()}"


@contextmanager
def spark_cluster(
    directory: Path, workers: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Cluster]:
    """A master and these workers, with one processor each."""
    cluster = Cluster(directory, environment)
    deploy = "org.apache.spark.deploy"
    anywhere = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as machines:
        master = (str(SPARK_CLASS), f"{deploy}.master.Master", *anywhere)
        machines.enter_context(cluster.machine("master", *master))
        cluster.master = wait_for_line(cluster.log("master"), r"(spark://127\.0\.0\.1:\d+)")
        resources = ("--cores", "1", "--memory", "1g", "--work-dir", "work")
        for name in workers:
            worker = (str(SPARK_CLASS), f"{deploy}.worker.Worker", *anywhere, *resources)
            machines.enter_context(cluster.machine(name, *worker, cluster.master))
        yield cluster
