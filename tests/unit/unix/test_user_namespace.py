"""Ids that the kernel cannot translate, in namespaces of all kinds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus.unix import user_namespace
from sbus.unix.user_namespace import known_gids, known_uids, untranslated_ids

ALL = "         0          0 4294967295\n"
FILES = {"overflowgid": "65534\n", "overflowuid": "65500\n", "uid_map": ALL, "gid_map": ALL}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What the kernel says; the test changes it before its first question."""
    files = dict(FILES)
    cached = (untranslated_ids, user_namespace._ambiguous_ids)
    monkeypatch.setattr(Path, "read_bytes", lambda path: files[path.name].encode())
    monkeypatch.setattr(Path, "read_text", lambda path: files[path.name])
    for function in cached:
        function.cache_clear()
    yield files
    for function in cached:
        function.cache_clear()


def test_untranslated_ids_are_the_kernel_s(files: dict[str, str]) -> None:
    assert untranslated_ids() == (65534, 65500)


def test_where_every_id_is_translated_each_is_somebody_s(files: dict[str, str]) -> None:
    assert known_uids({0, 7, 65500}) == {0, 7, 65500}
    assert known_gids({65534}) == {65534}


def test_a_kernel_without_namespaces_translates_every_id(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_file(_path: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", no_file)
    assert known_uids({0, 65500}) == {0, 65500}


@pytest.mark.parametrize("map_", ["", "0 0 1\n", "0 100000 65536\n", "65500 0 1\n65501 1 5\n"])
def test_elsewhere_one_of_them_may_be_anybody_s(files: dict[str, str], map_: str) -> None:
    files["uid_map"] = map_
    assert known_uids({0, 65500}) == {0}
    assert known_uids({65500}) == frozenset()
    assert known_gids({65534}) == {65534}, "the groups have a map of their own"
