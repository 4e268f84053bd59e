"""Control keys and the server's own packets, byte for byte."""

from sbus.protocol import controls
from sbus.protocol.keys import SLASH, is_reserved
from sbus.protocol.packets import ControlMessage, parse_server_packet


def test_the_control_keys_a_client_may_send() -> None:
    assert (
        frozenset(
            {
                *(b"!/cred/whoami", b"!/me", b"!/sync", b"echo/on", b"echo/off", b"!/notices/on"),
                *(b"!/join", b"!/leave", b"!/members", b"sender/on", b"sender/off"),
                *(b"blocking/soft/queue", b"blocking/soft/discard"),
                *(b"blocking/soft/block", b"blocking/soft/error"),
                *(b"blocking/hard/discard", b"blocking/hard/block", b"blocking/hard/error"),
                *(b"order/queue", b"order/stack", b"order/random", b"order/latest"),
            }
        )
        == controls.CLIENT_CONTROLS
    )


def test_a_client_begins_with_a_queue_that_drops_what_it_cannot_hold() -> None:
    assert controls.FloodControl() == controls.FloodControl(
        soft=controls.FLOOD_CONTROLS[b"blocking/soft/queue"],  # type: ignore[arg-type]
        hard=controls.FLOOD_CONTROLS[b"blocking/hard/discard"],  # type: ignore[arg-type]
        order=controls.FLOOD_CONTROLS[b"order/queue"],  # type: ignore[arg-type]
    )


def test_notices_have_keys_no_client_can_publish_with() -> None:
    assert is_reserved(controls.LOST, SLASH)
    assert is_reserved(controls.ERROR, SLASH)
    assert not {controls.LOST, controls.ERROR} & controls.CLIENT_CONTROLS


def test_whoami_names_group_user_and_process() -> None:
    assert (
        controls.whoami_reply(gid=100, uid=1000, pid=1111)
        == b"CMSG !/cred/whoami\0!/cred/100/1000/1111"
    )
    assert controls.whoami_reply(gid=0, uid=0, pid=1) == b"CMSG !/cred/whoami\0!/cred/0/0/1"


def test_a_lost_notice_has_a_count_or_a_question_mark() -> None:
    assert controls.lost_notice(12) == b"CMSG !/lost\x0012"
    assert controls.lost_notice(None) == b"CMSG !/lost\0?"


def test_an_error_notice_has_a_code_and_a_text() -> None:
    assert controls.error_notice("no-nul", "a key must end") == (
        b"CMSG !/error\0no-nul a key must end"
    )


def test_an_error_notice_carries_any_text() -> None:
    packet = controls.error_notice("reserved", "schlüssel \udcff")
    assert parse_server_packet(packet) == ControlMessage(
        b"!/error", "reserved schlüssel \\udcff".encode()
    )
