"""The configuration file of a bridge, and one clear error for each mistake in it."""

import re

import pytest

from sbus.bridge.configuration import default_origin, parse_configuration
from sbus.errors import ConfigurationError
from sbus.protocol.keys import SLASH
from sbus.protocol.pattern_matching import compile_patterns
from tests.support.bus import PROJECT

GOOD = """
[channels.lamps]
patterns = ["lamps/", "doors/*/state"]
[links.office]
servers = ["nats://a:4222", "tls://b:4222"]
export = ["lamps"]
import = ["lamps"]
"""


def test_reads_channels_and_links() -> None:
    found = parse_configuration(GOOD.encode(), "/run/x")
    assert found.channels["lamps"].encoded_patterns == [b"lamps/", b"doors/*/state"]
    assert found.links["office"].imports == ["lamps"]
    assert found.address == "/run/x"
    assert found.origin == default_origin("/run/x") != default_origin("/run/y")
    assert str(found) == "links: 1, channels: 1, exported: 1, imported: 1"


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("[links.office]", "[links.'of fice']", "links.of fice: a name has letters"),
        ('"lamps/"', '"!/cred/1/2/3/"', "channels.lamps.patterns[0]: reserved keys, secret"),
        ('"lamps/"', '"bridge/"', "channels.lamps.patterns[0]: reserved keys, secret"),
        ('"lamps/"', '"a*b"', "channels.lamps.patterns[0]: this pattern matches no key"),
        ('"lamps/"', f'"{"a" * 5000}"', "channels.lamps.patterns[0]: the pattern has 5000 bytes"),
        ('export = ["lamps"]', 'export = ["x"]', "links.office.export: there is no channel 'x'"),
        ('export = ["lamps"]', "exports = []", "there is no such field; did you mean export?"),
        ('export = ["lamps"]', "export = 1", "links.office.export: expected an array"),
        ('import = ["lamps"]', 'uplink = "/x"', "links.office: either servers, or uplink"),
        ('import = ["lamps"]', 'prefix = "a b"', "links.office.prefix: words of letters"),
        ('import = ["lamps"]', 'key = "/x"', "links.office: certificate and key belong together"),
        ('import = ["lamps"]', 'ca = "/nowhere"', "links.office.ca: cannot read /nowhere"),
        ('"nats://a:4222"', '"http://a"', "links.office.servers: 'http://a' is no nats:// URL"),
        ("[links.office]", "durable = {}\n[links.office]", "channels.lamps.durable: needs a dir"),
        (
            "[links.office]",
            "durable = {}\n[bridge]\nstate = '/nowhere'\n[links.office]",
            "channels.lamps.durable: needs a directory that exists",
        ),
        ('"nats://a:4222"', '"nats://a:x"', "links.office.servers: 'nats://a:x' is no nats:// URL"),
        ('"nats://a:4222"', '"nats://"', "links.office.servers: 'nats://' is no nats:// URL"),
        ('export = ["lamps"]', 'export = ["lamps", "lamps"]', "export: names a channel twice"),
        ("[links.office]", "durable.hours_max = inf\n[links.office]", "hours_max"),
        (GOOD, "[bridge]\norigin='.'", "bridge.origin: letters"),
        (GOOD, "", "links: there are none"),
    ],
)
def test_a_mistake_is_one_clear_error(old: str, new: str, error: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_configuration(GOOD.replace(old, new).encode(), "/run/x")
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("example", "keys", "links"),
    [
        ("Two hosts", ["doors/1/state"], [(["lamps"], ["lamps"])]),
        ("A star of twenty hosts", ["load/web3/cpu"], [(["load"], []), ([], ["load"])]),
        ("A container and its host", ["service/x", "host/state"], [(["service"], ["service"])]),
    ],
)
def test_the_examples_of_the_documentation_are_configurations(
    example: str, keys: list[str], links: list[tuple[list[str], list[str]]]
) -> None:
    text = (PROJECT / "docs/bridge.md").read_text()
    part = text.partition(f"### {example}\n")[2].partition("\n#")[0]
    files = re.findall(r"```toml\n(.*?)```", part, re.DOTALL)
    found = [parse_configuration(file.encode(), "/run/x") for file in files]
    assert [(it.exports, it.imports) for plan in found for it in plan.links.values()] == links
    for plan in found:
        (channel,) = plan.channels.values()
        crosses = compile_patterns(channel.encoded_patterns, SLASH)
        assert all(crosses(key.encode()) for key in keys)
        assert not any(crosses(key) for key in (b"doors/1/bell", b"host/secret"))
