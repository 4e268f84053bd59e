"""The documents agree with the sources: limits, codes, links, paths."""

import itertools
import re
import tomllib
from pathlib import Path

import pytest

from sbus.broker.config.file import ConfigFile, parse_config
from sbus.broker.config.resolution import resolve
from sbus.bus_options import OPTIONS, reloadable_options
from sbus.limits import RELOADABLE_LIMITS, Limits
from sbus.protocol.keys import SLASH

PROJECT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").glob("*.md")])
PROTOCOL = (PROJECT / "docs/protocol.md").read_text()
CONFIGURATION = (PROJECT / "docs/configuration.md").read_text()


def chapter(title: str) -> str:
    return PROTOCOL.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_documented_limits_are_the_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", chapter("Limits"), re.MULTILINE)
    assert len(rows) >= 7
    defaults = Limits()
    assert rows == [(name, str(getattr(defaults, name))) for name, _ in rows]


def test_the_documented_configurations_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their users and groups need not exist here."""
    monkeypatch.setattr("sbus.broker.config.resolution.user_id", hash)
    monkeypatch.setattr("sbus.broker.config.resolution.group_id", hash)
    examples = re.findall(r"^```toml\n(.*?)^```$", CONFIGURATION, re.MULTILINE | re.DOTALL)
    files = [parse_config(example.encode()) for example in examples]
    assert len(files) >= 6
    for file in files:
        assert file != ConfigFile()
        resolve(file, SLASH, Limits())
    assert f"/etc/sbus/sbus.toml: {files[0]}\n" in CONFIGURATION


def test_the_document_says_which_settings_can_change() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", CONFIGURATION, re.MULTILINE)
    assert [name for name, _ in rows] == [option.name for option in OPTIONS]
    assert {name for name, when in rows if when != "no"} == reloadable_options(without_mode=True)
    table = CONFIGURATION.partition("| limit | takes effect |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == RELOADABLE_LIMITS


def test_the_documented_limits_of_users_are_the_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)`[^,]*, ([\d.]+) \|", CONFIGURATION, re.MULTILINE)
    user = Limits().user
    assert rows == [
        (name, f"user_{name}", str(getattr(user, name))) for name in user.__struct_fields__
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    text = document.read_text()
    targets = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", text)
    for target in (markdown or html for markdown, html in targets):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = document.parent / path if path else document
        assert linked.exists(), f"{target} is not there"
        if anchor:
            assert anchor in anchors(linked.read_text()), f"{target} has no such heading"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_every_path_exists(document: Path) -> None:
    """Paths of source files without a link, such as `sbus/limits.py`."""
    named = re.findall(r"`((?:sbus|tests|deploy|docs)/[\w./-]+\.\w+)`", document.read_text())
    assert not [path for path in named if not (PROJECT / path).exists()]


def test_sources_refer_to_chapters_of_the_protocol_that_exist() -> None:
    """They write `docs/protocol.md, "Transport" and "Notices"`."""
    chapters = set(re.findall(r"^##+ ([^(\n]*[^(\s])", PROTOCOL, re.MULTILINE))
    reference = re.compile(r'docs/protocol\.md,\s+"[^"]+"(?:\s+and\s+"[^"]+")*')
    for path in [*(PROJECT / "sbus").rglob("*.py"), *(PROJECT / "tests").rglob("*.py")]:
        if path != Path(__file__):
            references = " ".join(reference.findall(path.read_text()))
            named = {" ".join(title.split()) for title in re.findall(r'"([^"]+)"', references)}
            assert named <= chapters, path


def anchors(text: str) -> set[str]:
    """The anchors that a Markdown renderer gives the headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_dependency_has_its_reason() -> None:
    """And the tables have no dependency that the project no longer has."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    needed = {re.split(r"[<>=\[]", each)[0] for each in itertools.chain(*lists)} - {project["name"]}
    tables = (PROJECT / "docs/dependencies.md").read_text().partition("## Deliberately without")[0]
    rows = [line for line in tables.split("\n") if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"\[([\w-]+)\]\(https://", row)}
    assert named == needed


def test_no_advice_installs_anything_but_this_project_and_what_it_needs() -> None:
    name = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["name"]
    lock = (PROJECT / "deploy/requirements.lock").read_text()
    known = {name, "uv", *re.findall(r"^([\w-]+)(?:\[.*\])?==", lock, re.MULTILINE)}
    advice = re.compile(r"pip install((?: +(?:'[^'{]+'|[\w.,\[\]<>=~-]+))+)")
    found = set()
    for path in (*DOCUMENTS, *(PROJECT / "sbus").rglob("*.py"), *(PROJECT / "deploy").rglob("*")):
        text = path.read_text() if path.is_file() and path.suffix != ".pyc" else ""
        words = " ".join(advice.findall(text)).replace("'", "").split()
        found |= {re.split(r"[\[<>=~]", word)[0] for word in words if word[0] not in "-."}
        # Without its own name before them, extras are those of another project.
        assert not re.search(r"(?<!\w)sbus\[[a-z{]", text), path
    assert name in found
    assert found <= known
