"""The command of ssh for another host."""

import pytest

from sbus.cli.sbusctl.other_host import command_there
from sbus.errors import ConfigurationError


@pytest.mark.parametrize(
    "words",
    [
        ["--host", "root@web3", "-a", "/a b", "pub", "x", "--host"],
        ["-a", "/a b", "--host=root@web3", "pub", "x", "--host"],
    ],
)
def test_the_rest_of_the_command_line_is_run_there(words: list[str]) -> None:
    expected = ["ssh", "--", "root@web3", "sbusctl -a '/a b' pub x --host"]
    assert command_there("root@web3", words) == expected


@pytest.mark.parametrize("host", ["", "-oProxyCommand=reboot"])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="is no host"):
        command_there(host, [])
