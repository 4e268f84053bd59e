"""The kinds of buses that the campaigns of `run_packets` run against, and who uses them."""

import random
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from sbus.limits import Limits
from sbus.protocol.keys import DIALECTS
from tests.fuzz.access_model import Rule, User, random_rules
from tests.fuzz.packets import LIMITS as SMALL_LIMITS

USERS: Final = [User(70_000 + number, 80_000 + number % 4) for number in range(10)]
OBSERVER: Final = User(70_100, 80_100)
"""No rule concerns it."""
LIMITS: Final = msgspec.structs.replace(
    Limits(),
    **{
        name: getattr(SMALL_LIMITS, name)
        for name in Limits.__struct_fields__
        if getattr(SMALL_LIMITS, name) != getattr(Limits(), name) and name != "table_bytes"
    },
)


class Setting(NamedTuple):
    """What kind of bus a campaign runs against."""

    workers: int
    dialect: str
    step: str
    has_rules: bool
    placement: str

    def __str__(self) -> str:
        rules = "access rules" if self.has_rules else "no rules"
        return f"{self.workers} workers, {self.dialect}, {self.step}, {rules}, {self.placement}"


def setting_of(seed: int) -> Setting:
    """Twenty-four seeds in a row have all combinations but for the placement."""
    rest, workers = divmod(seed, 3)
    return Setting(
        workers=(1, 2, 4)[workers],
        dialect=("slash", "dot")[rest % 2],
        step=("compiled", "python")[rest // 2 % 2],
        has_rules=bool(rest // 4 % 2),
        placement=("spread", "load")[seed // 24 % 2],
    )


def rules_of(seed: int) -> list[Rule]:
    """The access rules of a seed's bus."""
    setting = setting_of(seed)
    if not setting.has_rules:
        return []
    spared = b"sync" + DIALECTS[setting.dialect].separator
    return random_rules(random.Random(seed), USERS, setting.dialect, spared)


def bus_options(directory: Path, setting: Setting, rules: list[Rule]) -> list[str]:
    """Those of `sbusd`; the configuration file is written."""
    path = directory / "sbus.toml"
    path.write_text("\n".join(rule.toml() for rule in rules))
    options = ["--others", "--config", str(path), "--dialect", setting.dialect]
    # Of those who are disconnected, all connect again at once.
    options += ["--limit", "user_connections_per_second_max=100000"]
    for name in Limits.__struct_fields__:
        if (value := getattr(LIMITS, name)) != getattr(Limits(), name):
            options += ["--limit", f"{name}={value}"]
    return options
