"""A subscriber of the demo, a process of its own: `python -m sbus.demo.subscribe ...`.

Subscribes to a pattern, reports that it has, and then each message it receives, until the one that
ends the demo. Everything published before that one comes before it, whoever published it: that is
the bus's one order. An ordinary client, in trio: knows no publisher.
"""

import click
import trio

import sbus
from sbus.demo.names import call_myself
from sbus.demo.reports import Lost, Ready, Received, tell

END_KEY = b"demo/end"


async def subscribe(address: str, pattern: bytes) -> None:
    async with sbus.connect(address, losses="report") as bus:
        await bus.subscribe(pattern)
        await bus.subscribe(END_KEY)
        await bus.sync()
        tell(Ready())
        async for item in bus:
            if isinstance(item, sbus.Lost):
                tell(Lost(item.count))
            elif item.key == END_KEY:
                return
            else:
                tell(Received(item.key, item.payload))


@click.command()
@click.argument("pattern")
@click.option("--address", required=True)
@click.option("--name", required=True)
def main(address: str, pattern: str, name: str) -> None:
    call_myself(f"demo-{name}")
    try:
        trio.run(subscribe, address, pattern.encode())
    except sbus.SbusError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
