"""The options of `format("sbus")`; the error for a mistake names the option."""

from pathlib import Path

import pytest

from sbus.errors import ConfigurationError
from sbus.pipeline.spark.options import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    Bound,
    check_batch,
    check_stream,
    sink_options,
    source_options,
    table_options,
)

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "spark.md"
PATH = {"path": "/recording"}
SOCKET = {"socket": "/run/sbus.socket"}


def test_only_the_path_is_needed() -> None:
    options = source_options(PATH)
    assert options.path == "/recording"
    assert (options.table, options.patterns, options.starting) == ("messages", None, None)
    assert options.fail_on_data_loss
    check_batch(options)
    check_stream(options)


@pytest.mark.parametrize(
    ("text", "directory"),
    [
        ("file:///srv/a%20b", "/srv/a%20b"),
        ("s3://bucket/rec", "s3://bucket/rec"),
        ("FILE:/srv/rec", "/srv/rec"),
        ("rec", "rec"),
        ("a:b", "a:b"),
        ("9:/x", "9:/x"),
    ],
)
def test_a_path_may_be_a_file_uri(text: str, directory: str) -> None:
    assert source_options({"path": text}).path == directory


def test_names_are_accepted_in_any_case_and_those_of_spark_ignored() -> None:
    options = source_options(
        {"PATH": "/r", "maxoffsetspertrigger": "7", "checkpointLocation": "/c"}
    )
    assert options.max_offsets_per_trigger == 7


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("", (b"",)),
        ("lamps/", (b"lamps/",)),
        ("a/*/c, b/\\xff ,!/cred///1/x", (b"a/*/c", b"b/\xff", b"!/cred///1/x")),
        ("comma\\x2cspace\\x20", (b"comma,space ",)),
    ],
)
def test_subscribe_is_patterns_separated_by_commas(text: str, patterns: tuple[bytes, ...]) -> None:
    assert source_options({**PATH, "subscribe": text}).patterns == patterns


def test_a_batch_waits_for_enough_rows_as_long_as_with_kafka() -> None:
    least = {**PATH, "minOffsetsPerTrigger": "5"}
    assert source_options(least).trigger_delay_seconds_max == 15 * 60
    assert source_options({**least, "maxTriggerDelay": "1.5s"}).trigger_delay_seconds_max == 1.5


@pytest.mark.parametrize(
    ("text", "timestamp_us"),
    [
        ("1500", 1_500_000),
        ("-1", -1_000),
        ("1970-01-01T00:00:01.000002Z", 1_000_002),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-02", 86_400_000_000),
        ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999_999),
    ],
)
def test_timestamps_are_milliseconds_or_iso_8601(text: str, timestamp_us: int) -> None:
    options = source_options({**PATH, "startingTimestamp": text})
    assert options.starting == Bound("startingTimestamp", timestamp_us=timestamp_us)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", Bound("startingOffsets", everywhere=-2)),
        ("Latest", Bound("startingOffsets", everywhere=-1)),
        ('{"a-1": 5, "b": -1}', Bound("startingOffsets", offsets={"a-1": 5, "b": -1})),
    ],
)
def test_offsets_are_a_word_or_json(text: str, bound: Bound) -> None:
    assert source_options({**PATH, "startingOffsets": text}).starting == bound


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "path"),
        ({"path": ""}, "path"),
        ({"path": "file://host/rec"}, "path='file://host/rec'"),
        ({**PATH, "startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({**PATH, "flavour": "x"}, "unknown option 'flavour'"),
        ({**PATH, **SOCKET}, "unknown option 'socket'"),
        ({**PATH, "table": "rooms"}, "table: .*'rooms'"),
        ({**PATH, "table": "events", "subscribe": "a"}, "subscribe"),
        ({**PATH, "subscribe": "a*b"}, "subscribe: 'a\\*b'"),
        ({**PATH, "subscribe": "a,,b"}, "subscribe"),
        ({**PATH, "subscribe": "x/!/y"}, "subscribe: 'x/!/y'"),
        ({**PATH, "subscribe": "!/cred/*/1/2/x"}, "subscribe"),
        ({**PATH, "subscribe": "a\\q"}, "subscribe"),
        ({**PATH, "subscribe": "a\\x00"}, "subscribe"),
        ({**PATH, "subscribe": "a" * 4097}, "4097 bytes"),
        ({**PATH, "startingOffsets": "soon"}, "startingOffsets"),
        ({**PATH, "startingOffsets": "[1]"}, "startingOffsets"),
        ({**PATH, "startingOffsets": '{"a": -3}'}, 'startingOffsets=.*"a": -3'),
        ({**PATH, "startingOffsets": '{"a": true}'}, 'startingOffsets=.*"a": true'),
        ({**PATH, "endingOffsets": '{"a": "1"}'}, 'endingOffsets=.*"a": "1"'),
        ({**PATH, "startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({**PATH, "startingOffsets": "latest", "startingTimestamp": "1"}, "startingTimestamp"),
        ({**PATH, "startingTimestamp": "2", "endingTimestamp": "1"}, "is after endingTimestamp"),
        ({**PATH, "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({**PATH, "minPartitions": "many"}, "minPartitions"),
        ({**PATH, "maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition"),
        ({**PATH, "minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({**PATH, "maxTriggerDelay": "1m"}, "maxTriggerDelay"),
        ({**PATH, "minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1"}, "minOffsetsPerT"),
        ({**PATH, "failOnDataLoss": "maybe"}, "failOnDataLoss"),
    ],
)
def test_a_mistake_in_a_read_names_the_option(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        source_options(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({**PATH, "startingOffsets": "latest"}, "startingOffsets"),
        ({**PATH, "startingOffsets": '{"a": -1}'}, "startingOffsets"),
        ({**PATH, "endingOffsets": "earliest"}, "endingOffsets"),
        ({**PATH, "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger"),
        ({**PATH, "minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger"),
    ],
)
def test_a_batch_has_an_end_and_is_not_empty(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_batch(source_options(given))


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp"])
def test_a_stream_has_no_end(option: str) -> None:
    value = "latest" if option == "endingOffsets" else "5"
    with pytest.raises(ConfigurationError, match=option):
        check_stream(source_options({**PATH, option: value}))


def test_a_sink_is_a_socket_and_perhaps_a_key() -> None:
    options = sink_options({**SOCKET, "key": "a\\xff", "checkpointlocation": "/c"})
    assert (options.socket, options.key) == ("/run/sbus.socket", b"a\xff")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "socket"),
        ({"socket": "/dev/unix/abstract"}, "socket"),
        ({"socket": "x" * 200}, "socket"),
        ({**SOCKET, "path": "/x"}, "'path'"),
        ({**SOCKET, "key": "\\"}, "key"),
    ],
)
def test_a_mistake_in_a_write_names_the_option(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        sink_options(given)


def test_of_the_properties_of_a_table_only_its_options_count() -> None:
    of_table = {"provider": "sbus", "owner": "root", "location": "file:/r", "team": "x"}
    given = {**of_table, "path": "file:/r", "minpartitions": "2", "option.minpartitions": "2"}
    assert table_options(given) == {"path": "file:/r", "minPartitions": "2"}
    assert source_options(given).path == "/r"
    assert table_options(PATH) is None
    with pytest.raises(ConfigurationError, match="did you mean minPartitions"):
        source_options({**given, "option.minpartition": "2"})


def test_every_option_is_documented() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    cells = " ".join(row.split("|")[1] for row in rows)
    assert not [name for name in {*SOURCE_OPTIONS, *SINK_OPTIONS} if f"`{name}`" not in cells]
