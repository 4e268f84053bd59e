"""`sbusctl record`: its options.

The recorder is imported when it runs, because it needs the packages of the extra `recorder`.
"""

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sbus.cli.optional_packages import needs_packages
from sbus.cli.sbusctl.shared_options import SelectedBus
from sbus.cli.terminal.error_output import report_error
from sbus.unix.default_address import default_address
from sbus.unix.notify import Notifier
from sbus.unix.private_files import keep_new_files_private

if TYPE_CHECKING:
    from sbus.pipeline.recorder.recorder import Plan

_MIB = 1024 * 1024
_DAY_SECONDS = 86_400.0
_POSITIVE = click.FloatRange(min=0, min_open=True)
_setting = functools.partial(click.option, show_default=True)


@click.command(
    epilog="""\b
Examples:
  sbusctl record /var/lib/sbus/recording
  sbusctl record --retain-days 30 --probe ~/recording
  sbusctl record --plain ~/lamps 'lamps/' 'doors/*/state'
  sbusctl record --channel lamps /srv/lamps"""
)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.argument("patterns", type=os.fsencode, nargs=-1, metavar="[PATTERN]...")
@click.option(
    "--plain",
    is_flag=True,
    help="Subscribe like any client, without the admin socket: no publishers, clients and events, "
    "but a queue for bursts.",
)
@click.option("--probe", is_flag=True, help="Publish a message to itself each second, for latency.")
@click.option(
    "--channel",
    metavar="NAME",
    help="Record this durable channel of all hosts, from NATS, and not the bus.",
)
@_setting(
    "--bridge",
    type=click.Path(readable=False),
    metavar="FILE",
    default="/etc/sbus/bridge.toml",
    help="The bridge's configuration, which has the channel.",
)
@_setting(
    "--flush-ms",
    type=click.FloatRange(min=1),
    default=100,
    help="Write what has arrived at least this often.",
)
@_setting(
    "--flush-messages",
    type=click.IntRange(1, 100_000),
    default=10_000,
    help="Write at the latest when this many wait.",
)
@_setting(
    "--roll-bytes",
    type=click.IntRange(min=1),
    default=128 * _MIB,
    help="Seal a segment file, which makes it part of a Delta table, at this size.",
)
@_setting("--roll-minutes", type=_POSITIVE, default=10, help="Seal it at this age.")
@click.option("--retain-days", type=_POSITIVE, help="Delete what is older.  [default: never]")
@click.option(
    "--retain-bytes",
    type=click.IntRange(min=1),
    help="Delete the oldest when all sealed files together are larger.  [default: never]",
)
@click.option(
    "--table",
    metavar="URI",
    help="Where to seal to, such as s3://bucket/recording, or a shared directory.  [default: DIR]",
)
@_setting(
    "--grace-hours",
    type=click.IntRange(min=0),
    default=1,
    help="How long files that are to be deleted remain for readers that have begun.",
)
@_setting(
    "--snapshot-seconds", type=_POSITIVE, default=5, help="How often all clients are recorded."
)
@click.pass_obj
def record(selected: SelectedBus, /, channel: str | None, bridge: str, **chosen: Any) -> None:
    """Record the messages that match a PATTERN, or all, in DIR, until SIGTERM or Ctrl-C.

    An administrator of the bus also records publishers, clients and events. Where messages are
    missing there is a row of kind GAP. One recorder of a bus writes to DIR at a time; recorders of
    other buses and hosts may write there, too.

    Only you may read the files. With a umask that keeps all others out, such as 027, your group may
    read them as well.
    """
    with needs_packages({"pyarrow": "recorder", "numpy": "recorder", "nats": "bridge"}):
        import trio

        from sbus.pipeline.recorder.recorder import record as run

        if channel is not None:
            if chosen["patterns"] or chosen["plain"] or chosen["probe"]:
                raise click.UsageError("--channel records all of it: no PATTERN, --plain, --probe")
            from sbus.bridge.configuration import read_configuration
            from sbus.pipeline.recorder.channel_recorder import record_channel

            bridges = read_configuration(bridge, selected.address or default_address())
            run = functools.partial(record_channel, bridges, channel)
    keep_new_files_private()
    report = functools.partial(report_error, command="sbusctl")
    trio.run(run, _plan(selected, **chosen), Notifier.of_environment(report), report)


def _plan(
    selected: SelectedBus,
    *,
    directory: Path,
    patterns: tuple[bytes, ...],
    plain: bool,
    probe: bool,
    flush_ms: float,
    flush_messages: int,
    roll_bytes: int,
    roll_minutes: float,
    retain_days: float | None,
    retain_bytes: int | None,
    table: str | None,
    grace_hours: int,
    snapshot_seconds: float,
) -> "Plan":
    from sbus.pipeline.recorder.recorder import Plan
    from sbus.pipeline.store.retention import Retention
    from sbus.pipeline.store.row_batches import RecorderIdentity
    from sbus.pipeline.store.stored_file import absolute
    from sbus.pipeline.store.writer import Rolling

    address = selected.address or default_address()
    return Plan(
        directory=directory.absolute(),
        identity=RecorderIdentity.here(address),
        table=None if table is None else absolute(table),
        address=address,
        options=selected.link,
        patterns=patterns,
        connect_admin=None if plain else selected.connect_admin,
        probe=probe,
        flush_seconds=flush_ms / 1000,
        flush_rows=flush_messages,
        snapshot_seconds=snapshot_seconds,
        rolling=Rolling(roll_bytes, roll_minutes * 60),
        retention=Retention(
            seconds=None if retain_days is None else retain_days * _DAY_SECONDS,
            bytes=retain_bytes,
            grace_hours=grace_hours,
        ),
    )
