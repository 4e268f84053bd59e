"""`import sbus`: every name is there, and none costs anything before it is used."""

import subprocess
import sys

import pytest

import sbus

HEAVY = ("trio", "anyio", "click", "msgspec", "json", "asyncio")


def test_every_public_name_is_there_and_loaded_once() -> None:
    """From then on it is an attribute, which costs no call."""
    for name in sbus.__all__:
        found = getattr(sbus, name)
        assert vars(sbus)[name] is found
        assert name in dir(sbus)


def test_other_names_cannot_be_imported() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        sbus.nonsense  # noqa: B018 (looking it up is the test)


def loaded_by(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*sys.modules)"
    command = [sys.executable, "-c", script]
    return set(subprocess.run(command, capture_output=True, check=True, text=True).stdout.split())


def test_importing_sbus_loads_nothing_heavy() -> None:
    assert not loaded_by("import sbus").intersection(HEAVY)


@pytest.mark.parametrize(
    "statement", ["import sbus; sbus.blocking.connect", "import sbus.blocking"]
)
def test_the_blocking_client_loads_no_event_loop(statement: str) -> None:
    loaded = loaded_by(statement)
    assert "sbus.blocking" in loaded
    assert not loaded & {"trio", "anyio", "asyncio", "click"}
