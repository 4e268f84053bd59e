"""The command of ssh for another host."""

import pytest

from sbus.cli.sbusctl.other_host import command_there
from sbus.errors import ConfigurationError

WITH_VALUES = {"-a", "--address", "--host"}


@pytest.mark.parametrize(
    ("words", "there"),
    [
        (["--host", "root@web3", "-a", "/a b", "pub", "x", "--host"], "-a '/a b' pub x --host"),
        (["-a", "/a b", "--host=root@web3", "pub", "x", "--host"], "-a '/a b' pub x --host"),
        (["-a", "--host", "--host", "root@web3", "stats"], "-a --host stats"),
        (["--address", "--host=x", "--host", "root@web3", "stats"], "--address --host=x stats"),
        (["--host", "web1", "--host", "root@web3", "sub", "-a"], "sub -a"),
    ],
)
def test_the_rest_of_the_command_line_is_run_there(words: list[str], there: str) -> None:
    expected = ["ssh", "--", "root@web3", f"sbusctl {there}"]
    assert command_there("root@web3", words, WITH_VALUES) == expected


@pytest.mark.parametrize("host", ["", "-oProxyCommand=reboot"])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="is no host"):
        command_there(host, [], WITH_VALUES)
