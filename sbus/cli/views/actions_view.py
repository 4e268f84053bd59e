"""What `kick`, `reload` and `drain` print for people: what was done."""

from rich.text import Text

from sbus.cli.terminal.tables import paragraph
from sbus.cli.terminal.units import counted, enumerated
from sbus.cli.terminal.user_names import user_name
from sbus.protocol.admin_results import DrainResult, KickResult, ReloadResult


def kick_lines(result: KickResult, width: int | None) -> list[Text]:
    """Who was disconnected."""
    program = result.program or "a program that ended"
    who = f"{user_name(result.uid)}, pid {result.pid}, {program}"
    return paragraph(f"client {result.client} is disconnected: {who}", width)


def reload_lines(result: ReloadResult, width: int | None) -> list[Text]:
    """Which settings changed, and which wait for a restart."""
    applied = enumerated(result.applied) if result.applied else "nothing new"
    lines = paragraph(f"in force now: {applied}", width)
    if result.needs_restart:
        waiting = enumerated(result.needs_restart)
        lines += paragraph(f"unchanged until the bus is restarted: {waiting}", width)
    return lines


def drain_lines(result: DrainResult, width: int | None) -> list[Text]:
    """How many clients are left."""
    return paragraph(f"{counted(result.clients, 'client')} left", width)
