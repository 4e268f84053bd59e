"""Which user a bus runs as."""

import os

import pytest

from sbus.cli.sbusd.rights import new_identity
from sbus.errors import ConfigurationError
from sbus.unix.users import Identity
from tests.support.users import STRANGER, as_user, needs_root


def test_a_user_s_own_bus_stays_that_user_s() -> None:
    own = Identity.of_this_process()
    assert new_identity(own) is None


@needs_root
def test_another_user_than_root_cannot_choose() -> None:
    def is_refused() -> bool:
        with pytest.raises(ConfigurationError, match="only root can run the bus as another user"):
            new_identity(Identity(0, 0))
        return new_identity(None) is None

    assert as_user(is_refused, uid=STRANGER)


@needs_root
def test_root_chooses_any_user_and_else_that_of_the_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new_identity(Identity(STRANGER, STRANGER)) == Identity(STRANGER, STRANGER)
    monkeypatch.setattr("sbus.cli.sbusd.rights.SERVICE_USER", "nobody")
    found = new_identity(None)
    assert found is not None
    assert found.uid not in (0, os.geteuid())
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sbus.cli.sbusd.rights.SERVICE_USER", "nosuchuser")
    assert new_identity(None) is None
    assert "sbusd: warning: the bus runs as root, " in capsys.readouterr().err
