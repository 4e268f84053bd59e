"""`sbusctl metrics`: the options of the verb, and which of its three forms they choose.

`sbus.cli.metrics` is imported when the verb runs, because it needs a package that comes with the
extra `metrics`.
"""

import click

from sbus.cli.sbusctl.target import Target
from sbus.errors import ConfigurationError


def _file_mode(text: str) -> int:
    """The permissions of a file, in octal."""
    if text.isascii() and text.isdigit() and len(text) < 5 and int(text, 8) <= 0o777:
        return int(text, 8)
    raise ValueError


@click.command(
    epilog="""\b
Examples:
  sbusctl metrics
  sbusctl metrics --textfile /var/lib/prometheus/node-exporter/sbus.prom --interval 15
  sbusctl metrics --listen /run/sbus-metrics.socket --mode 0660
  curl --unix-socket /run/sbus-metrics.socket http://localhost/metrics"""
)
@click.option(
    "--textfile",
    metavar="FILE",
    help="Write to FILE, at once and whole, for node_exporter's textfile collector, which reads "
    "what ends in .prom.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Go on, and write FILE anew so often.",
)
@click.option(
    "--listen",
    metavar="SOCKET",
    help="Answer HTTP requests for /metrics on a stream socket: a path, /dev/unix/abstract/HEX, or "
    "/dev/fd/N, one passed down; the first that systemd passes is /dev/fd/3.",
)
@click.option(
    "--mode",
    type=_Mode(),
    metavar="MODE",
    help="Who may connect to the path of SOCKET, in octal.  [default: 0660]",
)
@click.option(
    "--users-max",
    type=click.IntRange(min=0, max=65_536),
    default=100,
    show_default=True,
    help="Users that have metrics of their own, in the order of their ids; of the others "
    "there is the number.",
)
@click.pass_obj
def metrics(
    target: Target,
    textfile: str | None,
    interval: float | None,
    listen: str | None,
    mode: int | None,
    users_max: int,
) -> None:
    """Print what the bus counts, for Prometheus, in OpenMetrics text.

    Where there is no bus, or none that answers, sbus_up is 0, and the reason is on standard error.
    Reads the admin socket, so it needs the rights for that. Without --interval and --listen it ends
    when it is done.
    """
    if textfile is not None and listen is not None:
        raise click.UsageError("metrics go either to --textfile or to who comes to --listen")
    if interval is not None and textfile is None:
        raise click.UsageError("--interval says how often --textfile is written")
    if mode is not None and listen is None:
        raise click.UsageError("--mode is of the socket of --listen")
    try:
        from sbus.cli.metrics.collector import BusCollector, openmetrics_text
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "prometheus_client":
            raise
        raise ConfigurationError(
            "metrics need the package prometheus-client: pip install 'sbus[metrics]'"
        ) from error
    collector = BusCollector(target.address, address=target.admin_address, users_max=users_max)
    if textfile is not None:
        from sbus.cli.metrics.textfile import write_textfile

        write_textfile(textfile, collector, interval)
    elif listen is not None:
        from sbus.cli.metrics.http_exporter import listen_and_serve

        listen_and_serve(listen, 0o660 if mode is None else mode, collector)
    else:
        from sbus.cli.terminal.exit_status import write

        write(openmetrics_text(collector))
