"""Names from passwd(5), also from a file with lines that mean nothing."""

from pathlib import Path

from sbus.unix.user_names import local_user_names


def test_the_first_name_of_an_id_counts(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    file.write_bytes(
        b"root:x:0:0:root:/root:/bin/sh\n"
        b"toor:x:0:0::/root:/bin/sh\n"
        b"# comment\n\n+::::::\nbad:x:-1:0\nworse:x:\xd9\xa1:0\n"
        b"k\xc3\xa4fer:x:1000:100\n"
    )
    assert local_user_names(file) == {0: "root", 1000: "käfer"}


def test_no_file_has_no_names(tmp_path: Path) -> None:
    assert local_user_names(tmp_path / "none") == {}
