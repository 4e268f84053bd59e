"""What sbusctl says of a bus of the older dialect (`tests/protocol/03-dot-dialect.t`)."""

import subprocess
from pathlib import Path

from tests.support.bus import SBUSCTL, SBUSCTL_SECONDS_MAX, running_bus, sbusd_environment


def test_the_short_pub_names_the_dialect_as_what_may_be_wrong(tmp_path: Path) -> None:
    with running_bus(tmp_path, "--dialect", "dot") as bus:
        result = subprocess.run(
            [*SBUSCTL, "pub", "k", "x"],
            env={**sbusd_environment(), "SBUS_ADDRESS": bus.address},
            capture_output=True,
            timeout=SBUSCTL_SECONDS_MAX,
            check=False,
        )
    assert result.returncode == 1
    assert b"sbusctl --dialect dot" in result.stderr
