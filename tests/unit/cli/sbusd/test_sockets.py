"""Where a bus without an address listens."""

import pytest

from sbus.bus_options import OPTIONS
from sbus.cli.sbusd.pidfile import Pidfile
from sbus.cli.sbusd.sockets import Addresses, open_sockets
from sbus.errors import AddressError, ConfigurationError
from tests.support.users import as_user, needs_root


@needs_root
def test_an_ordinary_user_is_told_how_to_name_other_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    options = {option.name: option.default_value for option in OPTIONS}

    def is_told() -> bool:
        with pytest.raises(ConfigurationError, match=r"Permission denied; .* with -a and -p$"):
            Pidfile("/run/sbus.pid")
        with pytest.raises(AddressError, match=r"/run/sbus.socket: Permission denied; .* with -a$"):
            open_sockets(Addresses(None, None, None), None, options)
        return True

    assert as_user(is_told)
