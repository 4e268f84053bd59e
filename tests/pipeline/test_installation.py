"""Spark finds the format by the name of a package at top level, however sbus was installed."""

import zipfile
from pathlib import Path

import pytest
from hatchling import build

from tests.support.bus import PROJECT


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_the_package_for_spark_is_installed_at_top_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(PROJECT)
    made = {"wheel": build.build_wheel, "editable": build.build_editable}[kind](str(tmp_path))
    with zipfile.ZipFile(tmp_path / made) as archive:
        names = set(archive.namelist())
        text = archive.read("pyspark_sbus/__init__.py").decode()
    assert "DefaultSource" in text
    assert {name for name in names if name.startswith("pyspark_")} == {"pyspark_sbus/__init__.py"}
    assert kind == "editable" or "sbus/pipeline/spark/log4j2.properties" in names
