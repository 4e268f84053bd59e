"""The demo, as the README says to run it, only shorter: a real bus and its clients, to the end."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.bus import sbusd_environment, wait_until_gone

DEMO = (sys.executable, "-m", "sbus.demo", "--no-pipeline", "--workers", "2", "--seconds", "0.5")
SECONDS_MAX = 300.0


def environment(directory: Path) -> dict[str, str]:
    return {**sbusd_environment(), "TMPDIR": str(directory)}


def test_everything_that_was_published_arrives(tmp_path: Path) -> None:
    done = subprocess.run(
        DEMO, env=environment(tmp_path), capture_output=True, timeout=SECONDS_MAX, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode("ascii").splitlines()
    assert max(map(len, lines[1:])) <= 80, "only the first line, with the address, may be longer"
    heading = next(line for line in lines if line.startswith("subscriber "))
    assert heading.split()[:5] == ["subscriber", "pattern", "due", "received", "lost"]
    everything = next(line for line in lines if "(empty: everything)" in line)
    due, received, lost, verdict = everything.split()[-4:]
    assert due == received != "0"
    assert (lost, verdict) == ("0", "yes")
    assert list(tmp_path.iterdir()) == []


def test_it_stays_until_it_is_interrupted(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*DEMO, "--stay"], env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    ) as demo:
        try:
            assert demo.stdout is not None
            address = next(line for line in demo.stdout if "SBUS_ADDRESS=" in line).strip()
            assert Path(address.partition("=")[2]).is_socket()
            demo.send_signal(signal.SIGINT)
            assert wait_until_gone(demo.pid, SECONDS_MAX)
            assert demo.wait() == 0
        finally:
            demo.kill()
    assert list(tmp_path.iterdir()) == []
