"""The bus in the sandbox of its unit, with a real systemd.

The bus and its administrator see the same ids of a client as the kernel, and everything works that
needs a fork, shared memory, locks or a user's long list of groups.
"""

from typing import Any

import pytest

from sbus.limits import TIME_SLICE_NS
from tests.deploy import booted, sandbox_probe
from tests.support.time_slices import needs_time_slices

pytestmark = pytest.mark.skipif(booted.why_not() is not None, reason=str(booted.why_not()))
MESSAGES = 4 * ["MSG key\0payload"]


@pytest.fixture(scope="module")
def seen() -> Any:
    return booted.boot(sandbox_probe.__name__)


def test_the_bus_knows_who_its_clients_are(seen: Any) -> None:
    identity = seen["identity"]
    uid, gid, pid = sandbox_probe.UID, sandbox_probe.GID, identity["pid"]
    assert identity["whoami"] == f"CMSG !/cred/whoami\0!/cred/{gid}/{uid}/{pid}"
    (client,) = identity["clients"]
    told = (client["uid"], client["gid"], client["pid"], client["program"])
    assert told == (uid, gid, pid, sandbox_probe.PROGRAM)


def test_every_process_of_the_bus_is_confined(seen: Any) -> None:
    own, processes = seen["own"], seen["processes"]
    assert processes.keys() >= {"front", "sbusd-forkserv", "sbusd-worker-0"}
    for process in processes.values():
        assert set(process["Uid"].split()) == {str(seen["user"])}
        assert int(process["CapEff"], 16) == int(process["CapBnd"], 16) == 0
        assert (process["NoNewPrivs"], process["Seccomp"]) == ("1", "2")
        assert process["net"] != own["net"]
        # With others of these the ids of clients would be others, too.
        assert (process["user"], process["pid"]) == (own["user"], own["pid"])


@needs_time_slices
def test_every_process_of_the_bus_has_a_short_time_slice(seen: Any) -> None:
    assert set(seen["time slices"]) == {TIME_SLICE_NS}


def test_the_first_client_starts_the_bus_and_a_later_one_starts_it_again(seen: Any) -> None:
    assert seen["before"] == seen["stopped"] == "inactive"
    assert seen["received"] == seen["received after a stop"] == MESSAGES


def test_no_look_at_the_figures_starts_a_bus_that_was_stopped(seen: Any) -> None:
    told, *others = seen["asked"]
    assert "is sbusd running there" in told
    assert others == ["sbus_up 0.0", "inactive"]


def test_clients_that_connect_during_a_drain_are_served_by_the_next_bus(seen: Any) -> None:
    assert seen["drained"] == "Admits no more clients, 1 are left"
    assert seen["answered after a drain"].startswith("CMSG !/cred/whoami\0!/cred/0/0/")


def test_workers_are_replaced_in_the_sandbox(seen: Any) -> None:
    assert seen["received with a new worker"] == MESSAGES
    assert "died: signal 9" in seen["stderr"]


def test_a_front_that_hangs_is_replaced(seen: Any) -> None:
    assert seen["replaced when hung"]
    assert seen["received after it hung"] == MESSAGES


def test_metrics_are_exported_from_a_sandbox_of_their_own(seen: Any) -> None:
    head, _, body = seen["metrics"].partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 "), seen["metrics"]
    assert "sbus_" in body


def test_systemctl_shows_the_status(seen: Any) -> None:
    assert seen["status"].endswith(" workers serve at /run/sbus.socket")


def test_clients_stay_while_another_process_takes_over_the_service(seen: Any) -> None:
    assert seen["reload"] == {
        "received": MESSAGES[0],
        "is another process": True,
        "uid": seen["user"],
        "is confined": True,
        "status": "3 workers serve at /run/sbus.socket",
        "state": "active",
        "output": seen["reload"]["output"],
    }


@pytest.mark.parametrize("by", ["failing reload", "take-over"])
def test_the_service_goes_on_where_no_other_process_may_take_over(seen: Any, by: str) -> None:
    found = seen[by]
    assert (found["received"], found["state"]) == (MESSAGES[0], "active")
    assert not found["is another process"]
    assert found["status"] == "3 workers serve at /run/sbus.socket"
    assert found["output"]


def test_a_bus_that_root_has_started_is_upgraded_as_the_user_that_it_runs_as(seen: Any) -> None:
    assert seen["by root"] == {"uids": 2 * [seen["user"]], "processes": 2, "errors": ""}


def test_sockets_have_their_modes_and_leave_nothing(seen: Any) -> None:
    assert seen["modes"] == ["0o666", "0o660"]
    assert seen["owners"] == [0, seen["user"]]
    assert seen["left"] == []
