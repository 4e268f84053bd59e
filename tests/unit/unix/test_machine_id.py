"""Which machine this is, and what an image leaves in place of its id."""

from pathlib import Path

import pytest

from sbus.unix import machine_id as module
from sbus.unix.machine_id import machine_id

ID = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("etc", "dbus", "expected"),
    [
        (f"{ID}\n", None, ID),
        ("uninitialized\n", f"{ID}\n", ID),
        ("", None, ""),
        (None, None, ""),
        ("\xe4" * 32, None, ""),
    ],
)
def test_the_first_file_with_an_id_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    etc: str | None,
    dbus: str | None,
    expected: str,
) -> None:
    paths = [tmp_path / "etc", tmp_path / "dbus"]
    for path, text in zip(paths, (etc, dbus), strict=True):
        if text is not None:
            path.write_text(text, "latin-1")
    monkeypatch.setattr(module, "_PATHS", [str(path) for path in paths])
    assert machine_id() == expected
