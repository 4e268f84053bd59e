"""A missing package is reported with the extra that installs it, and no other error is."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from sbus.cli.optional_packages import needs_packages
from sbus.cli.terminal.exit_status import CommandGroup
from sbus.errors import ConfigurationError

PROJECT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("module", ["prometheus_client", "prometheus_client.metrics_core"])
def test_the_extra_of_a_missing_package_is_named(module: str) -> None:
    said = r"the package prometheus-client: pip install 'sbusd\[metrics\]'"
    extras = {"prometheus_client": "metrics"}
    with pytest.raises(ConfigurationError, match=said), needs_packages(extras):
        raise ModuleNotFoundError(name=module)


def test_a_command_without_its_packages_ends_with_a_status_of_its_own() -> None:
    """Units start nothing again after it."""
    group = CommandGroup("sbusctl")

    @group.command()
    def verb() -> None:
        with needs_packages({"pyarrow": "recorder"}):
            raise ModuleNotFoundError(name="pyarrow")

    assert CliRunner().invoke(group, ["verb"]).exit_code == os.EX_UNAVAILABLE
    for unit in ("sbus-recorder.service", "sbus-bridge.service", "user/sbus-recorder.service"):
        text = (PROJECT / "deploy/systemd" / unit).read_text()
        assert f"\nRestartPreventExitStatus={os.EX_UNAVAILABLE}\n" in text


@pytest.mark.parametrize("module", ["trio", None])
def test_another_missing_module_is_an_error_of_ours(module: str | None) -> None:
    with pytest.raises(ModuleNotFoundError), needs_packages({"numpy": "recorder"}):
        raise ModuleNotFoundError(name=module)
