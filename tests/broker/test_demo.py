"""The demo, as the README says to run it, only shorter: a real bus and its clients, to the end."""

import signal
import subprocess
import sys
from pathlib import Path

import sbus
from tests.support.bus import sbusd_environment

DEMO = (sys.executable, "-m", "sbus.demo", "--no-pipeline", "--workers", "2", "--seconds", "0.5")
SECONDS_MAX = 300.0


def environment(directory: Path) -> dict[str, str]:
    return {**sbusd_environment(), "TMPDIR": str(directory)}


def test_everything_that_was_published_arrives_and_the_bus_stays_until_it_is_interrupted(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [*DEMO, "--stay"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        try:
            assert demo.stdout is not None
            lines = []
            for line in demo.stdout:
                if "SBUS_ADDRESS=" in line:
                    break
                lines.append(line.rstrip("\n"))
            address = line.strip().partition("=")[2]
            with sbus.blocking.connect(address) as client:
                client.subscribe("")
                client.receive(timeout_seconds=60)
            demo.send_signal(signal.SIGINT)
            _, errors = demo.communicate(timeout=SECONDS_MAX)
            assert (demo.returncode, errors) == (0, "")
        finally:
            demo.kill()
    assert "".join(lines).isascii()
    assert max(map(len, lines[1:])) <= 80, "only the first line, with the address, may be longer"
    heading = next(line for line in lines if line.startswith("subscriber "))
    assert heading.split()[:5] == ["subscriber", "pattern", "due", "received", "lost"]
    everything = next(line for line in lines if "(empty: everything)" in line)
    due, received, lost, verdict = everything.split()[-4:]
    assert due == received != "0"
    assert (lost, verdict) == ("0", "yes")
    assert list(tmp_path.iterdir()) == []
