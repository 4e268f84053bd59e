"""Lists and explanations of the admin socket, compared with what the test's clients did."""

import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.support.admin import administer, own_user
from tests.support.bus import Bus, running_bus
from tests.support.inheritance import inherited_connection
from tests.support.processes import several_clients

CLIENTS = 25


def test_clients_are_listed_once_each_in_order(bus: Bus) -> None:
    """An empty page may follow a full one."""
    with several_clients(bus, CLIENTS), administer(bus) as admin:
        pages = admin.pages("clients", "clients", limit=10)
        assert [len(page) for page in pages] == [10, 10, 5]
        found = [client["client"] for page in pages for client in page]
        assert found == sorted(set(found))
        pages = admin.pages("clients", "clients", limit=5)
        assert [len(page) for page in pages] == [5, 5, 5, 5, 5, 0]
        assert admin.ask("clients", uid=os.getuid() + 1)["clients"] == []


def test_subscriptions_are_listed_with_their_counts(bus: Bus) -> None:
    patterns = [
        [b"a/b", b"a/b", b"", b"a/*"],
        [b"c/"],
        [],
        [b"a/\xff\n\\", b"a/b/c", b"a/"],
    ]
    texts = {
        ("a/b", 2),
        ("", 1),
        ("a/*", 1),
        ("c/", 1),
        ("a/\\xff\\x0a\\\\", 1),
        ("a/b/c", 1),
        ("a/", 1),
    }
    with several_clients(bus, len(patterns)) as clients, administer(bus) as admin:
        for client, own in zip(clients, patterns, strict=True):
            for pattern in own:
                client.sub(pattern)
            client.sync()
        for limit in (1, 2, 300):
            pages = admin.pages("subs", "subscriptions", limit=limit)
            assert all(len(page) <= limit for page in pages)
            found = [entry for page in pages for entry in page]
            assert Counter((entry["pattern"], entry["count"]) for entry in found) == Counter(texts)

        def matching(pattern: str) -> set[str]:
            pages = admin.pages("subs", "subscriptions", pattern=pattern)
            return {entry["pattern"] for page in pages for entry in page}

        assert matching("a/b") == {"a/b", "", "a/*", "a/"}, "who receives a key"
        assert matching("a/") == {"a/b", "", "a/*", "a/\\xff\\x0a\\\\", "a/b/c", "a/"}
        assert matching("c/d") == {"", "c/"}
        assert matching("*x") == set(), "no key matches that"

        explained = admin.ask("explain", key="a/b")
        found = [sorted(one["patterns"]) for one in explained["recipients"]]
        assert sorted(found) == [["", "a/*", "a/b"], ["a/"]]
        assert explained["workers"] == [0, 1]
        counts = ("recipients_count", "excluded_count", "stalled_count")
        assert [explained[name] for name in counts] == [2, 0, 0]
        assert not explained["secret"]
        assert own_user(admin)["subscriptions"] == 8


def test_answers_stay_small_whatever_patterns_clients_have(bus: Bus) -> None:
    """Stars in a row mean what one does, so a short key can have many long patterns."""
    patterns = [b"a/" + b"*" * (4_000 - number) for number in range(20)]
    with several_clients(bus, 30) as clients, administer(bus) as admin:
        for client in clients:
            for pattern in patterns:
                client.sub(pattern)
            client.sync()
        found = admin.ask("explain", key="a/b")
        assert found["recipients_count"] == len(clients)
        assert len(found["recipients"]) == len(clients)
        pages = admin.pages("subs", "subscriptions", limit=300)
        assert sum(len(page) for page in pages) == len(clients) * len(patterns)
        clients[0].control(b"!/me")
        (packet,) = [clients[0].receive()]
        assert packet.startswith(b"CMSG !/me\0")
        assert f'"connections":{len(clients)}'.encode() in packet


def test_an_explanation_says_why_a_client_does_not_receive(tmp_path: Path) -> None:
    config = tmp_path / "sbus.toml"
    config.write_text(
        "[[rules]]\ndeny = ['publish']\nkeys = ['x']\n"
        "[[rules]]\ndeny = ['subscribe']\nkeys = ['audit/*/secret']\n"
    )
    with running_bus(tmp_path, "--config", str(config)) as bus, ExitStack() as stack:
        client = stack.enter_context(bus.connect())
        admin = stack.enter_context(administer(bus))
        client.sub(b"audit/")
        client.sub(b"!/cred/%d/%d//mail" % (os.getgid(), os.getuid()))
        client.sync()
        denied = admin.ask("explain", key="audit/1/secret")
        assert (denied["recipients_count"], denied["workers"]) == (0, [])
        (one,) = denied["excluded"]
        assert (one["why_not"], one["text"]) == ("not-allowed", "rules[1]")
        assert one["patterns"] == ["audit/"]
        assert admin.ask("explain", key="audit/1/open")["recipients_count"] == 1
        mail = admin.ask("explain", key=f"!/cred/{os.getgid()}/{os.getuid()}//mail")
        assert mail["secret"]
        assert mail["recipients_count"] == 1
        assert mail["recipients"][0]["patterns"] == [f"!/cred/{os.getgid()}/{os.getuid()}//mail"]
        assert admin.ask("explain", key="!/cred///1/mail")["recipients_count"] == 0
        client.sub(b"!/cred////mail")
        client.sync()
        others = admin.ask("explain", key=f"!/cred/{os.getgid()}/{os.getuid() + 1}//mail")
        assert [one["why_not"] for one in others["excluded"]] == ["not-yours"]


def test_a_process_that_has_ended_receives_no_secret_and_has_no_name(bus: Bus) -> None:
    with inherited_connection(bus.address) as child, administer(bus) as admin:
        child.send(b"SUB !/cred////mail")
        child.send(b"CMSG !/cred/whoami")
        assert child.receive().startswith(b"CMSG")
        (before,) = admin.ask("clients")["clients"]
        assert before["program"]
        key = f"!/cred///{before['pid']}/mail"
        assert admin.ask("explain", key=key)["recipients_count"] == 1
        child.end_parent()
        (after,) = admin.ask("clients")["clients"]
        assert after["program"] == ""
        (one,) = admin.ask("explain", key=key)["excluded"]
        assert one["why_not"] == "process-ended"
