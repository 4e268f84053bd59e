"""The documentation site: it builds without a warning, and has all generated parts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import sbus
from sbus.cli.metrics.families import FAMILIES
from sbus.cli.sbusctl.command import VERBS
from sbus.limits import Limits
from sbus.protocol import admin
from sbus.protocol.admin_results import Traffic, UserReport

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "html"
    command = [sys.executable, str(PROJECT / "deploy/build-docs"), str(out)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    return out


def page(site: Path, name: str) -> str:
    return (site / f"{name}.html").read_text()


def ids(html: str) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', html))


def test_every_document_is_a_page(site: Path) -> None:
    documents = {path.stem for path in (PROJECT / "docs").glob("*.md")} - {"README"}
    assert documents <= {path.stem for path in site.glob("*.html")}


def test_every_link_leads_to_a_page_and_a_place_in_it(site: Path) -> None:
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    places = {path: ids(html) for path, html in pages.items()}
    for path, html in pages.items():
        for target in re.findall(r'<a [^>]*href="([^"]+)"', html):
            if target.startswith(("http://", "https://", "mailto:")):
                continue
            name, _, place = target.partition("#")
            linked = (path.parent / name).resolve() if name else path
            assert linked in pages, f"{path.relative_to(site)}: {target}"
            assert not place or place in places[linked], f"{path.relative_to(site)}: {target}"


def test_nothing_is_left_to_be_filled_in(site: Path) -> None:
    for path in site.glob("**/*.html"):
        if "source" not in path.relative_to(site).parts:
            assert "generated:" not in path.read_text(), path.name


def test_the_admin_protocol_is_there_in_full(site: Path) -> None:
    html = page(site, "admin")
    for request, result in admin.RESULTS.items():
        assert request.__struct_config__.tag in ids(html)
        assert result.__name__.lower() in ids(html)
    for struct in (Traffic, UserReport):
        for field in struct.__struct_fields__:
            assert f">{field}<" in html


def test_the_reference_is_there_in_full(site: Path) -> None:
    python, commands = page(site, "reference/python"), page(site, "reference/commands")
    for name in set(sbus.__all__) - {"__version__", "blocking"}:
        home = getattr(sbus, name).__module__
        assert {f"sbus.{name}", f"{home}.{name}"} & ids(python), name
    for verb in VERBS:
        assert f"sbusctl-{verb}" in ids(commands)
    assert {"SBUS_ADDRESS", "SBUS_ADMIN_ADDRESS"} <= set(re.findall(r"\bSBUS_\w+", commands))
    assert "cmdoption-sbusd-a" in ids(commands)
    limits = page(site, "reference/limits")
    assert all(f">{name}<" in limits for name in Limits.__struct_fields__)
    metrics = page(site, "metrics")
    assert all(f">{family.name}<" in metrics for family in FAMILIES)
