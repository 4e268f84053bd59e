"""Access rules against a model that reads them one by one: the last one that applies decides."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.broker.config.access_policy import (
    RULES_MAX,
    AccessProfile,
    AccessRule,
    KeyRules,
    PeerRules,
    Permission,
    decode_rule_set,
    encode_rule_set,
)
from sbus.protocol.keys import DOT, SLASH, Dialect
from tests.fuzz.access_model import AccessModel, Rule, User
from tests.unit.routing.specification import matches

CACHE_BYTES = 100_000
IDS = st.integers(0, 3)
KEYS = st.lists(st.sampled_from(["a", "b", "ab", "!x", ""]), min_size=1, max_size=3).map(
    lambda parts: "/".join(parts).encode()
)
SECRET_KEYS = st.sampled_from([b"!/cred////a", b"!/cred//1//a/b"])
NAME_KEYS = st.sampled_from([b"!/presence/1/a", b"!/presence/1/ab", b"!/presence/2/a"])
NAME_PATTERNS = st.one_of(
    NAME_KEYS, st.sampled_from([b"!/presence/%b" % it for it in (b"*/*", b"*/a", b"1/*", b"1/a*")])
)
PATTERNS = st.one_of(
    KEYS,
    st.sampled_from([b"", b"a/", b"*", b"*/", b"a*", b"*/b", b"a/*/", b"a*/", b"/"]),
    NAME_PATTERNS,
)
RULES = st.lists(
    st.builds(
        AccessRule,
        allows=st.booleans(),
        permissions=st.frozensets(st.sampled_from(Permission), min_size=1),
        uids=st.frozensets(IDS, max_size=2),
        gids=st.frozensets(IDS, max_size=2),
        local_uids=st.none() | st.frozensets(IDS, max_size=2),
        local_gids=st.none() | st.frozensets(IDS, max_size=2),
        patterns=st.lists(PATTERNS, max_size=2).map(tuple),
    ),
    max_size=6,
)


def rule(
    allows: bool, *verbs: Permission, keys: str | None = None, uid: int | None = None
) -> AccessRule:
    return AccessRule(
        allows=allows,
        permissions=frozenset(verbs),
        uids=frozenset() if uid is None else frozenset({uid}),
        patterns=() if keys is None else tuple(keys.encode().split()),
    )


# -- the specification -----------------------------------------------------------------------------


def applies_to_peer(rule: AccessRule, uid: int, groups: frozenset[int]) -> bool:
    """A name that is not found gives no right, and may be that of any id that is not local."""
    if uid in rule.uids or rule.gids & groups:
        return True
    if rule.local_uids is None and rule.local_gids is None:
        return not rule.uids and not rule.gids
    may_be_user = rule.local_uids is not None and uid not in rule.local_uids
    may_be_member = rule.local_gids is not None and bool(groups - rule.local_gids)
    return not rule.allows and (may_be_user or may_be_member)


def applies_to_key(rule: AccessRule, key: bytes, dialect: Dialect) -> bool:
    return not rule.patterns or any(matches(pattern, key, dialect) for pattern in rule.patterns)


def decision(rules: list[AccessRule], verb: Permission) -> bool:
    """Whether these rules, all about the case, allow it."""
    allowed = verb is not Permission.BLOCK
    for rule in rules:
        if verb in rule.permissions:
            allowed = rule.allows
    return allowed


@given(RULES, IDS, st.frozensets(IDS), st.one_of(KEYS, SECRET_KEYS, NAME_KEYS), st.booleans())
def test_the_last_rule_that_applies_decides(
    rules: list[AccessRule], uid: int, groups: frozenset[int], key: bytes, remembering: bool
) -> None:
    of_peer = [rule for rule in rules if applies_to_peer(rule, uid, groups)]
    of_key = [rule for rule in of_peer if applies_to_key(rule, key, SLASH)]
    peers = PeerRules(rules)
    rule_set = peers.rules_for(uid, groups)
    assert (peers.connect_denied_by(rule_set) is None) == decision(of_peer, Permission.CONNECT)
    keys = KeyRules(rules, SLASH, CACHE_BYTES if remembering else 0)
    profile = keys.profile(decode_rule_set(encode_rule_set(rule_set)))
    assert profile.may_block_others == decision(of_peer, Permission.BLOCK)
    for _ in range(2):
        assert (keys.denied_by(profile.publish, key) is None) == decision(
            of_key, Permission.PUBLISH
        )
        assert keys.may_receive(profile.subscribe, key) == decision(of_key, Permission.SUBSCRIBE)


def test_the_denying_rule_is_returned() -> None:
    rules = [
        rule(False, Permission.CONNECT, Permission.PUBLISH),
        rule(True, Permission.CONNECT, uid=1),
        rule(True, Permission.PUBLISH, keys="a/"),
        rule(False, Permission.PUBLISH, keys="a/b"),
    ]
    peers, keys = PeerRules(rules), KeyRules(rules, SLASH, CACHE_BYTES)
    assert peers.connect_denied_by(peers.rules_for(2, frozenset())) == 0
    assert peers.connect_denied_by(peers.rules_for(1, frozenset())) is None
    profile = keys.profile(peers.rules_for(2, frozenset()))
    denied_by = [keys.denied_by(profile.publish, key) for key in (b"b", b"a/c", b"a/b")]
    assert denied_by == [0, None, 3]


def test_a_client_without_rules_about_a_permission_has_an_empty_profile() -> None:
    rules = [
        rule(False, Permission.CONNECT),
        rule(False, Permission.PUBLISH, Permission.SUBSCRIBE, uid=1),
    ]
    profile = KeyRules(rules, SLASH, 0).profile(PeerRules(rules).rules_for(2, frozenset({1})))
    assert profile == AccessProfile(publish=0, subscribe=0, may_block_others=False)


# -- SUB -------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.builds(
            AccessRule,
            allows=st.booleans(),
            permissions=st.just(frozenset({Permission.SUBSCRIBE})),
            patterns=st.lists(PATTERNS, max_size=2).map(tuple),
        ),
        min_size=1,
        max_size=4,
    ),
    PATTERNS,
)
@settings(max_examples=10 * settings().max_examples)
def test_a_pattern_is_refused_where_single_rules_deny_all_of_it(
    rules: list[AccessRule], pattern: bytes
) -> None:
    keys = KeyRules(rules, SLASH, 0)
    denied_by = keys.subscribe_denied_by(keys.profile((1 << len(rules)) - 1), pattern)
    told = [
        Rule(rule.allows, tuple(it.value for it in rule.permissions), (), (), tuple(rule.patterns))
        for rule in rules
    ]
    refused = AccessModel(told, User(0, 0), SLASH.name).refuses_pattern(pattern)
    assert (denied_by is not None) == refused
    assert denied_by is None or not rules[denied_by].allows


@pytest.mark.parametrize(("keyed", "denied_by"), [(True, None), (False, 0)])
def test_only_rules_without_keys_apply_to_secret_messages(
    keyed: bool, denied_by: int | None
) -> None:
    rules = [rule(False, Permission.PUBLISH, Permission.SUBSCRIBE, keys="*/" if keyed else None)]
    keys = KeyRules(rules, SLASH, CACHE_BYTES)
    profile = keys.profile(1)
    assert keys.denied_by(profile.publish, b"!/cred////a") == denied_by
    assert keys.may_receive(profile.subscribe, b"!/cred////a") == keyed
    assert keys.subscribe_denied_by(profile, b"!/cred////") == denied_by


def test_patterns_are_split_as_the_dialect_says() -> None:
    keys = KeyRules([rule(False, Permission.PUBLISH, keys="a.*")], DOT, 0)
    profile = keys.profile(1)
    assert keys.denied_by(profile.publish, b"a.b/c") == 0
    assert keys.denied_by(profile.publish, b"a.b.c") is None


# -- bounds ----------------------------------------------------------------------------------------


def test_the_cache_of_keys_is_bounded() -> None:
    rules = [rule(False, Permission.PUBLISH, keys="a/1*")] * RULES_MAX
    keys = KeyRules(rules, SLASH, CACHE_BYTES)
    profile = keys.profile((1 << RULES_MAX) - 1)
    for number in range(2_000):
        denied = str(number).startswith("1")
        assert (keys.denied_by(profile.publish, b"a/%d" % number) is not None) == denied
    keys._cache.check_invariants()
    assert 0 < keys._cache.statistics().bytes <= CACHE_BYTES
