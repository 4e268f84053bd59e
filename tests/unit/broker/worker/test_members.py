"""Members follow the records of names, and are found by patterns."""

from hypothesis import given
from hypothesis import strategies as st

from sbus.broker.worker.members import Members, NamedClient, named_client
from sbus.protocol.presence import Member
from sbus.protocol.presence_keys import NamePattern

UIDS = st.integers(0, 3)
NAMES = st.text("ab-", min_size=1, max_size=3).map(str.encode)
NAMED = st.builds(
    NamedClient,
    st.builds(Member, UIDS, NAMES, st.integers(1, 9), st.just(1), st.just(2)),
    *[st.integers(0, 9)] * 3,
    st.binary(max_size=5),
)
PATTERNS = st.builds(
    NamePattern,
    st.none() | UIDS,
    st.text("ab-", max_size=2).map(str.encode),
    st.booleans(),
)


@given(NAMED)
def test_a_record_says_all_about_a_name(named: NamedClient) -> None:
    record = named.taken(1)
    assert named_client(record.client, record.pattern) == named


@given(st.lists(st.tuples(NAMED, st.booleans())), PATTERNS, st.none() | st.tuples(UIDS, NAMES))
def test_members_agree_with_the_records(
    changes: list[tuple[NamedClient, bool]],
    pattern: NamePattern,
    after: tuple[int, bytes] | None,
) -> None:
    """Against a dict; each record is read twice, as after an append of the same worker."""
    members, oracle = Members(), dict[tuple[int, bytes], Member]()
    for named, joins in changes:
        for _ in range(2):
            members.apply(named.taken(0) if joins else named.given_back(0))
        if joins:
            oracle[named.key] = named.member
        elif (there := oracle.get(named.key)) and there.client == named.member.client:
            del oracle[named.key]
    expected = [
        oracle[uid, name]
        for uid, name in sorted(oracle)
        if pattern.uid in (None, uid)
        and (name == pattern.name or (pattern.is_prefix and name.startswith(pattern.name)))
        and (after is None or (uid, name) > after)
    ]
    assert list(members.matching(pattern, after)) == expected
    assert all(members.get(*key) == member for key, member in oracle.items())
