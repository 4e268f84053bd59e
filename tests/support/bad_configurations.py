"""Invalid configuration files, enumerated: all mistakes in all fields of all tables.

Each comes with the place that its error must name. The fields are those of the tables' types; the
valid values of each are written out here anew.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from sbus.bus_options import OPTIONS
from sbus.limits import Limits, UserLimits
from sbus.toml_file import FILE_BYTES_MAX

GOOD = """\
[bus]
soft = "queue"
[limits]
key_bytes_max = 100
[users.root]
connections_max = 30
[[rules]]
deny = ["publish"]
keys = ["audit/"]
[[rules]]
allow = ["subscribe"]
users = ["root"]
groups = ["root", 7]
"""

SWITCHES = {
    *("foreground", "exit_when_empty", "group", "others", "replace", "disconnect_descriptors")
}
CHOICES = {"placement", "dialect", "soft", "hard", "order", "log"}
PATHS = {"address", "pidfile", "admin_address"}
SECONDS = {
    *("user_held_seconds_max", "held_seconds_max", "held_window_seconds", "stop_seconds_max"),
    *("worker_silence_seconds_max", "log_interval_seconds"),
}
RULE_LISTS = ("allow", "deny", "users", "groups", "keys")


class Bad(NamedTuple):
    """A file, and the beginning of its error after the file's name."""

    data: bytes
    place: str


def toml(value: Any) -> str:
    """A value as TOML, which JSON is here but for tables and infinity."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(value[key])}" for key in value) + "}"
    return str(value) if isinstance(value, float) else json.dumps(value)


def bad(text: str, place: str) -> Bad:
    return Bad(text.encode(), place)


def bad_configurations() -> Iterator[Bad]:
    """All of them but those that are no file."""
    for option in OPTIONS:
        for value in wrong_for_bus(option.name):
            yield bad(f"[bus]\n{option.name} = {toml(value)}", f"bus.{option.name}")
    for field in Limits.__struct_fields__:
        for value in wrong_for_limit(field):
            yield bad(f"[limits]\n{field} = {toml(value)}", f"limits.{field}: ")
    for field in UserLimits.__struct_fields__:
        for value in wrong_for_limit(field):
            yield bad(f"[users.root]\n{field} = {toml(value)}", f"users.root.{field}: ")
    for field in RULE_LISTS:
        yield from wrong_for_rules(field)
    yield from wrong_as_a_whole()
    yield from no_toml()


def wrong_for_bus(field: str) -> list[Any]:
    if field in SWITCHES:
        return [1, "true", 0.5, [], {}]
    if field in CHOICES:
        return [1, True, "nonsense", "", ["queue"]]
    if field in PATHS:
        return [7, True, "", "/a\0", ["/a"], "/dev/fd/x" if field != "pidfile" else {}]
    if field == "workers":
        return [0, 65, -1, "2", True, 1.5]
    if field == "users":
        return ["root", [], [1.5], ["no-such-user"], [""], [-1], [2**32], ["root", 0], [[]]]
    if field == "run_as":
        return [1.5, True, "no-such-user", "", -1, 2**32, ["root"]]
    assert field == "admin_group", f"what is wrong for bus.{field}?"
    return [1.5, True, "no-such-group", "", -1, ["root"]]


def wrong_for_limit(field: str) -> list[Any]:
    wrong = ["7", True, [], {}, -1, 2**60]
    if field == "quantum_units":
        return [*wrong, 1]
    if field in ("packet_bytes_max", "batch_bytes_max", "socket_buffer_bytes"):
        return [*wrong, 1.5, 2**31]
    if field in SECONDS:
        return [*wrong, 1e10, float("inf"), float("nan")]
    return [*wrong, 1.5, 10**200]


def wrong_for_rules(field: str) -> Iterator[Bad]:
    others = {"allow": "", "deny": ""}.get(field, 'deny = ["publish"]\n')
    wrong: list[tuple[Any, str]] = [("publish", ""), ([], ""), ({}, ""), ([1.5], "[0]")]
    if field in ("allow", "deny"):
        wrong += [(["nonsense"], "[0]"), (["block", "block"], "[1]"), ([7], "[0]")]
    elif field == "keys":
        wrong += [(["a", "a"], "[1]"), (["a/!/b"], "[0]"), (["b*c"], "[0]"), ([7], "[0]")]
        wrong += [(["a\0"], "[0]"), (["!/cred/1/2/3/"], "[0]"), (["a/" * 200], "[0]")]
    else:
        wrong += [(["no-such-name"], "[0]"), ([0, "root"], "[1]"), ([-1], "[0]"), ([True], "[0]")]
        wrong.append((["\0"], "[0]"))
    for value, at in wrong:
        good = '[[rules]]\nallow = ["block"]\n[[rules]]\n'
        yield bad(f"{good}{others}{field} = {toml(value)}", f"rules[1].{field}{at}: ")


def wrong_as_a_whole() -> Iterator[Bad]:
    for table in ("", "[bus]\n", "[limits]\n", "[users.root]\n", "[[rules]]\n"):
        place = table.strip("[]\n").replace("rules", "rules[0]")
        yield bad(f"{table}xyzzy = 1", f"{place}.xyzzy: there is no such field".lstrip("."))
    for table in ("bus", "limits", "users", "rules", "users.root"):
        yield bad(f"{table} = 7", f"{table}: ")
    yield bad("limit = 1", "limit: there is no such field; did you mean limits")
    yield bad('"a\\n - at `$.b" = 1', "*unknown field")
    yield bad(f'"{"a" * 9_000}" = 1', "aaa*...: there is no such field")
    yield bad('[bus]\nsoft = "blok"', "bus.soft: there is no soft 'blok'; choose from queue, ")
    yield bad("rules = [7]", "rules[0]: ")
    yield bad("[users.nobody-has-this-name]", "users.nobody-has-this-name: there is no user")
    yield bad("[users.root]\n[users.0]", "users.0: this is the same user as users.root")
    yield bad("[users.4294967295]", "users.4294967295: user id 4294967295 is out of range")
    yield bad("[users.root]\nuser_connections_max = 1", "users.root.user_connections_max: *mean")
    few = "[limits]\nusers_max = 3\n[users.70001]\n[users.70002]"
    yield bad(few, "users: 2 have limits of their own, *limits.users_max, which is 3, ")
    yield bad('[[rules]]\nusers = ["root"]', "rules[0]: needs either allow or deny")
    yield bad('[[rules]]\nallow = ["block"]\ndeny = ["block"]', "rules[0]: needs either allow or ")
    rule = '[[rules]]\ndeny = ["publish", "connect"]\nkeys = ["a"]'
    yield bad(rule, "rules[0].keys: connect does not depend on keys")
    rule = '[limits]\npattern_bytes_max = 3\n[[rules]]\nallow = ["publish"]\nkeys = ["abcd"]'
    yield bad(rule, "rules[0].keys[0]: the pattern has 4 bytes, at most 3 may be")
    yield bad('[[rules]]\nallow = ["block"]\n' * 1025, "rules: ")


def no_toml() -> Iterator[Bad]:
    yield bad("[bus]\nworkers = 1\nworkers = 2", "not valid TOML: Cannot overwrite *at line 3,")
    yield bad("[bus]\n[bus]", "not valid TOML: Cannot declare")
    for at in range(0, len(GOOD), 7):
        line = GOOD.count("\n", 0, at) + 1
        # A control character may stand nowhere.
        yield Bad(f"{GOOD[:at]}\x01{GOOD[at:]}".encode(), f"not valid TOML: *line {line},")
        yield Bad(GOOD[:at].encode() + b"\xff" + GOOD[at:].encode(), f"line {line} is not UTF-8")
    yield bad("a = " + "[" * 9_000, "arrays or tables are nested too deeply")
    yield bad("a = " + "1" * 9_000, "a number has too many digits")
    yield Bad(bytes(range(256)) * 16, "line ")
    yield Bad(b"#" * (FILE_BYTES_MAX + 1), "it has more than ")
