"""A Spark cluster reads the recordings of two hosts in object storage. It shares no directory with
anybody, has no Java installed, and an executor is killed in the middle of a question."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyarrow.fs import FileSelector

from sbus.pipeline.store import recorder_file
from sbus.pipeline.store.schemas import MESSAGES
from sbus.pipeline.store.sealing import Sealer
from sbus.pipeline.store.stored_file import file_system
from tests.pipeline.jobs import oracles
from tests.support.job_results import keyed, tuples
from tests.support.object_storage import BUCKET, object_storage
from tests.support.recordings import HOSTS, Tables, generate, write
from tests.support.spark_cluster import NAMESPACES, spark_cluster

MESSAGE_COUNT = 12_000
MINUTE_US = 60_000_000
PROGRAM_SECONDS_MAX = 600.0
WORKERS = ("worker-1", "worker-2")
TABLE = f"s3://{BUCKET}/recording"
ANSWERS = f"s3://{BUCKET}/answers"


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, str]]:
    with object_storage(tmp_path / "storage.log") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield environment


def record(directory: Path, tables: Tables) -> None:
    """Each host on its own, sealed to one table."""
    for host in HOSTS:
        every = (tables.messages, tables.clients, tables.events)
        own = Tables(*(table.filter(pc.equal(table["host"], host)) for table in every))
        write(directory / host, own, table=TABLE)
        (recorder,) = recorder_file.load_all(directory / host)
        Sealer(directory / host, recorder).seal()


def answer(question: str) -> pa.Table:
    return DeltaTable(f"{ANSWERS}/{question}").to_pyarrow_table()


def in_order(messages: pa.Table) -> pa.Table:
    """Without the incarnation, which is chosen when the recording begins."""
    schema = pa.schema([field for field in MESSAGES if field.name != "incarnation"])
    ordered = messages.sort_by([("recorder", "ascending"), ("offset", "ascending")])
    return ordered.select(schema.names).cast(schema).combine_chunks()


def test_a_cluster_reads_recordings_in_object_storage(
    tmp_path: Path, storage: Mapping[str, str]
) -> None:
    if os.geteuid() != 0 or subprocess.run([*NAMESPACES, "true"], check=False).returncode:
        pytest.skip("only root can make network namespaces")
    tables = generate(MESSAGE_COUNT, seconds=600)
    record(tmp_path, tables)
    rows = tables.messages.num_rows
    (tmp_path / "machines").mkdir()
    with spark_cluster(tmp_path / "machines", WORKERS, storage) as cluster:
        program = ["-m", "tests.support.cluster_program", cluster.master, TABLE, ANSWERS, str(rows)]
        cluster.run("driver", [sys.executable, *program], PROGRAM_SECONDS_MAX)

    expected = in_order(tables.messages)
    for question in ("batch", "stream"):
        assert in_order(answer(question)).equals(expected), question
    messages = oracles.rows(tables.messages)
    found = tuples(answer("traffic"), "start", "prefix", "messages", "bytes", "publishers")
    assert keyed(found, 2) == oracles.traffic(messages, 2, MINUTE_US)
    found = tuples(answer("losses"), "recorder", "start", "gaps", "lost", "unknown")
    losses = oracles.losses(messages, MINUTE_US)
    # The generated rows have one incarnation for each recorder, and it is another one on disk.
    assert keyed(found, 2) == {(at[0], at[2]): lost for at, lost in losses.items()}
    hot = tuples(answer("hot-keys"), "key", "messages", "bytes", "publishers", "first", "last")
    assert hot == oracles.hot_keys(messages, 20, 1)
    machines = tuples(answer("machines"), "machine", "seen")
    assert sorted(machines) == [(name, name) for name in WORKERS]
    assert killed() == ["stream", "traffic"]


def killed() -> list[str]:
    """In which questions an executor was killed."""
    files, path = file_system(f"{ANSWERS}/killed")
    return sorted(found.base_name for found in files.get_file_info(FileSelector(path)))
