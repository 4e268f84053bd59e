"""The verb of `sbusctl` that shows the members of a bus: members."""

import os
from typing import TYPE_CHECKING

import click

from sbus.cli.sbusctl.shared_options import SelectedBus, json_option, verb

if TYPE_CHECKING:
    from sbus.protocol.presence import MemberChange

_SECONDS_MAX = 10.0


@verb("sbusctl members", "sbusctl members '*/worker-*'", "sbusctl members --watch --json")
@click.argument("pattern", type=os.fsencode, default="*/*")
@click.option("-w", "--watch", is_flag=True, help="Go on, and show who comes and goes.")
@click.option("--count", type=click.IntRange(min=1), help="With --watch: end after so many lines.")
@json_option
def members(
    selected: SelectedBus, pattern: bytes, watch: bool, count: int | None, as_json: bool
) -> None:
    """Show the clients that have taken a name.

    PATTERN is UID/NAME, where UID may be * and NAME may end with a *. Each line has the user's id,
    the name, and the number, the group and the process of the client; with --watch, also whether it
    is there, and if not, why. A client is shown if you may receive what tells of it.
    """
    from sbus.protocol.presence import MemberChange

    if count is not None and not watch:
        raise click.UsageError("--count is for --watch")
    with selected.connect(_SECONDS_MAX) as bus:
        if not watch:
            for member in bus.members(pattern, timeout_seconds=_SECONDS_MAX):
                _show(MemberChange(member), as_json=as_json, is_watch=False)
            return
        with bus.watch_members(pattern, timeout_seconds=_SECONDS_MAX) as watched:
            changes = [MemberChange(member) for member in watched.members()]
            shown = 0
            while count is None or shown < count:
                change = changes.pop(0) if changes else watched.receive()
                _show(change, as_json=as_json, is_watch=True)
                shown += 1


def _show(change: "MemberChange", *, as_json: bool, is_watch: bool) -> None:
    from sbus.cli.terminal.standard_output import write_json, write_line

    member = change.member
    name = member.name.decode()
    if as_json:
        fields = {
            "uid": member.uid,
            "name": name,
            "client": member.client,
            "gid": member.gid,
            "pid": member.pid,
        }
        if is_watch:
            fields |= {"present": change.reason is None, "reason": change.reason}
        write_json(fields)
    else:
        state = f"  {'there' if change.reason is None else change.reason}" if is_watch else ""
        ids = f"client {member.client}  gid {member.gid}  pid {member.pid}"
        write_line(f"{member.uid}/{name}  {ids}{state}")
