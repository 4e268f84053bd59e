"""The keys that a stream of messages selects, by the specification, in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from sbus.broker.worker import monitor
from sbus.broker.worker.monitor import KeySelection
from sbus.protocol.keys import SLASH
from sbus.protocol.text import from_text
from tests.unit.routing.specification import matches

segments = st.sampled_from([b"", b"a", b"b", b"ab", b"\xff", b"\\"])
keys = st.lists(segments, min_size=1, max_size=3).map(b"/".join)
patterns = st.lists(segments | st.sampled_from([b"*", b"a*"]), min_size=1, max_size=3).map(
    b"/".join
)


@given(st.lists(patterns, min_size=1, max_size=3), st.lists(keys, max_size=10))
def test_those_that_a_pattern_matches(wanted: list[bytes], some: list[bytes]) -> None:
    selection = KeySelection(wanted, SLASH)
    for key in some + some:
        found = selection.get(key)
        assert (found is not None) == any(matches(pattern, key, SLASH) for pattern in wanted)
        if found is not None:
            assert from_text(found[0]) == key
            assert not found[1]


def test_without_patterns_it_is_all_of_them() -> None:
    selection = KeySelection([], SLASH)
    assert selection.get(b"a/b") == ("a/b", False)
    assert selection.get(b"!/cred////x") == ("!/cred////x", True)
    assert selection.get(b"a/!/cred////x") == ("a/!/cred////x", True)


def test_secret_keys_are_selected_by_secret_patterns_only() -> None:
    for pattern in (b"", b"*/", b"!*/"):
        assert KeySelection([pattern], SLASH).get(b"!/cred////x") is None
    some = KeySelection([b"!/cred//1000//x"], SLASH)
    assert some.get(b"!/cred//1000//x") is not None
    assert some.get(b"!/cred/5/1000/77/x") is not None
    assert some.get(b"!/cred//1001//x") is None


def test_what_is_remembered_is_bounded() -> None:
    selection = KeySelection([b"a/"], SLASH)
    for number in range(100_000):
        selection.get(b"%d" % number)
        assert selection._cache.statistics().bytes <= monitor._CACHE_BYTES_MAX
