"""Object storage: an S3 server in a process of its own, which keeps objects in memory."""

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.threads import wait_until

START_SECONDS_MAX = 60.0
BUCKET = "recordings"


@contextmanager
def object_storage(log: Path) -> Iterator[Mapping[str, str]]:
    """A server with one bucket, and the environment in which programs find it."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with log.open("wb") as output, subprocess.Popen(command, stderr=output) as server:
        try:
            url = wait_for_line(log, r"Running on (http://127\.0\.0\.1:\d+)")
            request = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")
            with urllib.request.urlopen(request):
                yield {
                    "AWS_ENDPOINT_URL": url,
                    "AWS_ALLOW_HTTP": "true",
                    "AWS_REGION": "us-east-1",
                    "AWS_ACCESS_KEY_ID": "test",
                    "AWS_SECRET_ACCESS_KEY": "test",
                }
        finally:
            server.kill()


def wait_for_line(log: Path, pattern: str) -> str:
    """The group of the pattern, once a program has written it to its log."""
    found = re.compile(pattern)
    wait_until(
        lambda: found.search(log.read_text()) is not None,
        f"{pattern} in {log}",
        timeout_s=START_SECONDS_MAX,
    )
    match = found.search(log.read_text())
    assert match is not None
    return match[1]
