"""The configuration file: its meaning, and that every mistake is one line that names its place."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.broker.config.access_policy import RULE_KEYS_MAX, RULES_MAX, AccessRule, Permission
from sbus.broker.config.file import ConfigFile, parse_config, read_config
from sbus.broker.config.resolution import Resolved, resolve
from sbus.broker.config.settings import BusSettings
from sbus.errors import ConfigurationError
from sbus.limits import Limits
from sbus.protocol.keys import SLASH
from sbus.toml_file import FILE_BYTES_MAX
from tests.support.users import UNPRIVILEGED, directory_for_everybody, effective_user

EXAMPLE = b"""
[bus]
workers = 3
users = ["root", 1001, "1002"]
exit_when_empty = true
hard = "error"

[limits]
backlog_bytes_max = 1000
user_connections_max = 7
stop_seconds_max = 3

[users.root]
connections_max = 20

[users.1001]
backlog_bytes_max = 0
held_seconds_max = 0.5

[[rules]]
deny = ["publish", "subscribe"]
keys = ["audit/", "h\xc3\xa4user/*"]

[[rules]]
allow = ["publish"]
users = ["root", 1001, "1002"]
groups = ["root", 1003]
keys = ["audit/*/x"]

[[rules]]
allow = ["block", "connect"]
"""


def understand(data: bytes) -> tuple[ConfigFile, Resolved]:
    """What a file says, and what that means to a bus without any limits of its command line."""
    file = parse_config(data)
    return file, resolve(file, SLASH, msgspec.structs.replace(Limits(), **file.limits))


def bus_limits(file: ConfigFile) -> Limits:
    return msgspec.structs.replace(Limits(), **file.limits)


def test_a_file_with_every_table() -> None:
    file, resolved = understand(EXAMPLE)
    assert file.bus == {
        "workers": 3,
        "users": ["root", 1001, "1002"],
        "exit_when_empty": True,
        "hard": "error",
    }
    assert file.limits == {
        "backlog_bytes_max": 1000,
        "user_connections_max": 7,
        "stop_seconds_max": 3.0,
    }
    assert file.users == {
        "root": {"connections_max": 20},
        "1001": {"backlog_bytes_max": 0, "held_seconds_max": 0.5},
    }
    assert resolved.user_names == {0: "root", 1001: "1001"}
    assert resolved.rules == (
        AccessRule(
            allows=False,
            permissions=frozenset({Permission.PUBLISH, Permission.SUBSCRIBE}),
            patterns=(b"audit/", b"h\xc3\xa4user/*"),
        ),
        AccessRule(
            allows=True,
            permissions=frozenset({Permission.PUBLISH}),
            uids=frozenset({0, 1001, 1002}),
            gids=frozenset({0, 1003}),
            patterns=(b"audit/*/x",),
        ),
        AccessRule(allows=True, permissions=frozenset({Permission.BLOCK, Permission.CONNECT})),
    )


def test_empty_file_changes_nothing() -> None:
    file, resolved = understand(b"# nothing yet")
    assert file == ConfigFile()
    assert resolved == Resolved()


def test_limits_of_a_user_override_those_of_the_bus() -> None:
    file, resolved = understand(EXAMPLE)
    limits = bus_limits(file)
    assert (limits.backlog_bytes_max, limits.stop_seconds_max) == (1000, 3)
    settings = BusSettings(workers=1, limits=limits, user_limits=resolved.user_limits)
    assert settings.limits_of(0).connections_max == 20
    assert settings.limits_of(0).backlog_bytes_max == Limits().user_backlog_bytes_max
    assert settings.limits_of(1001).connections_max == 7
    assert settings.limits_of(1001).held_seconds_max == 0.5
    assert settings.limits_of(1002) == limits.user


# -- mistakes --------------------------------------------------------------------------------------


def error_of(data: bytes) -> str:
    """The error about a file, which is one line."""
    with pytest.raises(ConfigurationError) as refused:
        understand(data)
    text = str(refused.value).removeprefix(": ")
    assert text.isprintable()
    assert len(text) < 500
    return text


def test_rules_and_their_keys_are_bounded() -> None:
    one = '[[rules]]\nallow = ["publish"]\n'
    assert len(understand((one * RULES_MAX).encode())[1].rules) == RULES_MAX
    too_many = error_of((one * (RULES_MAX + 1)).encode())
    assert re.fullmatch(rf"rules: .*{RULES_MAX}", too_many)
    keys = [f"k{number}" for number in range(RULE_KEYS_MAX)]
    (rule,) = understand(f"{one}keys = {json.dumps(keys)}".encode())[1].rules
    assert len(rule.patterns) == RULE_KEYS_MAX
    one_more = f'{one}keys = ["a"]\n{one}keys = {json.dumps(keys)}'
    assert error_of(one_more.encode()).startswith("rules: all of them together ")


@given(st.data())
def test_a_damaged_file_raises_nothing_but_configuration_errors(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(EXAMPLE)))
    cut = data.draw(st.integers(0, 8))
    put = data.draw(st.one_of(st.binary(max_size=6), st.sampled_from([b'"', b"]", b"\n", b"-1"])))
    damaged = EXAMPLE[:at] + put + EXAMPLE[at + cut :]
    text = ""
    try:
        understand(damaged)
    except ConfigurationError as refused:
        text = str(refused)
    assert text.isprintable()


# -- the file itself -------------------------------------------------------------------------------


def error_about(path: Path) -> str:
    with pytest.raises(ConfigurationError) as refused:
        read_config(str(path))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_file_that_cannot_be_read_is_reported_with_its_path(tmp_path: Path) -> None:
    assert error_about(tmp_path / "none") == (
        f"cannot read {tmp_path}/none: No such file or directory"
    )
    assert error_about(tmp_path) == f"cannot read {tmp_path}: Is a directory"
    os.mkfifo(tmp_path / "pipe")
    assert re.fullmatch(r".*/pipe: not a regular file.*", error_about(tmp_path / "pipe"))
    assert re.fullmatch(r"/dev/zero: not a regular file.*", error_about(Path("/dev/zero")))
    (tmp_path / "loop").symlink_to("loop")
    assert error_about(tmp_path / "loop").startswith(f"cannot read {tmp_path}/loop: ")


def test_a_file_without_permission_is_reported_with_its_path() -> None:
    with directory_for_everybody() as directory:
        path = directory / "closed"
        path.touch(mode=0)
        with effective_user(UNPRIVILEGED):
            assert error_about(path) == f"cannot read {path}: Permission denied"


def test_large_files_are_refused_without_reading_them(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"#" * FILE_BYTES_MAX)
    assert read_config(str(path)) == ConfigFile(path=str(path))
    os.truncate(path, 1 << 40)
    assert re.fullmatch(rf"{path}: it has more than {FILE_BYTES_MAX} bytes.*", error_about(path))


def test_reading_a_file_imports_no_event_loop() -> None:
    program = "import sys, sbus.broker.config.file; sys.exit('trio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# -- names that are not found ----------------------------------------------------------------------
MISSING = b"""
[bus]
users = ["root", "no-such-user"]
[users.no-such-user]
connections_max = 7
[users.root]
connections_max = 8
[[rules]]
allow = ["publish"]
users = ["no-such-user"]
[[rules]]
deny = ["connect"]
users = ["root"]
groups = ["no-such-group", "root"]
"""


def test_names_that_are_not_found_are_collected_where_that_is_wanted() -> None:
    missing: list[str] = []
    found = resolve(parse_config(MISSING), SLASH, Limits(), missing)
    assert missing == [
        "users.no-such-user: there is no user 'no-such-user'",
        "rules[0].users[0]: there is no user 'no-such-user'",
        "rules[1].groups[0]: there is no group 'no-such-group'",
    ]
    assert found.user_limits.keys() == {0}
    allowing, denying = found.rules
    assert (allowing.uids, allowing.local_gids) == (frozenset(), None)
    assert allowing.local_uids is not None
    assert 0 in allowing.local_uids
    assert not allowing.is_for_everybody
    zero = frozenset({0})
    assert (denying.uids, denying.local_uids, denying.gids) == (zero, None, zero)
    assert denying.local_gids is not None
    assert 0 in denying.local_gids
