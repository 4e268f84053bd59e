"""Manual pages and completion: generated from the command lines, complete, and valid."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from deploy.man_pages import page, summary
from sbus.cli.sbusctl.command import sbusctl
from tests.support.needs import needs_tool

PROJECT = Path(__file__).resolve().parents[2]
SECTIONS = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]


def made_by(program: str, folder: Path) -> list[Path]:
    command = [sys.executable, str(PROJECT / "deploy" / program), str(folder)]
    subprocess.run(command, check=True, timeout=60, cwd=folder.parent)
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return made_by("man-pages", tmp_path_factory.mktemp("manual") / "man")


def test_every_command_has_its_page(manual: list[Path]) -> None:
    verbs = sbusctl.list_commands(click.Context(sbusctl))
    assert {"pub", "sub", "metrics"} <= set(verbs)
    assert {path.name for path in manual} == {
        "sbusd.8",
        "sbusctl.1",
        *(f"sbusctl-{verb}.1" for verb in verbs),
    }


def test_every_page_has_every_section(manual: list[Path]) -> None:
    for path in manual:
        text = path.read_text()
        sections = re.findall(r"^\.SH (.+)$", text, re.MULTILINE)
        assert [name for name in sections if name in SECTIONS] == SECTIONS, path.name
        examples = text.partition(".SH EXAMPLES\n")[2].partition("\n.SH")[0].split("\n")
        assert examples[:3] == [".PP", ".RS 4", ".EX"], f"{path.name}: they would be reflowed"


def test_pages_under_see_also_exist(manual: list[Path]) -> None:
    there = {path.name for path in manual}
    for path in manual:
        references = path.read_text().partition(".SH SEE ALSO\n")[2]
        plain = re.sub(r"\\f[BR]", "", references).replace("\\-", "-")
        named = re.findall(r"([\w-]+)\((\d)\)", plain)
        assert named
        assert {f"{name}.{section}" for name, section in named} <= there - {path.name}


@needs_tool("groff", "groff-base")
def test_no_page_makes_the_formatter_complain(manual: list[Path]) -> None:
    command = ["groff", "-man", "-ww", "-z", "-Tutf8", *map(str, manual)]
    outcome = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (outcome.returncode, outcome.stderr) == (0, b"")


@needs_tool("groff", "groff-base")
def test_texts_are_shown_as_they_are(tmp_path: Path) -> None:
    """Nothing in them acts as an instruction, a quotation mark or a break."""
    nasty = ["'br at the start", ".so /etc/passwd", "\\n and \\\\", "-- `a` ^ ~ \"b\" 'c'"]
    command = click.Command(
        "x", help=f"{nasty[0]}\n\n{nasty[1]}", epilog="\b\nExample:\n  {}\n  {}"
    )
    assert command.epilog is not None
    command.epilog = command.epilog.format(*nasty[2:])
    path = tmp_path / "x.1"
    path.write_text(page(click.Context(command, info_name="sbusctl"), 1))
    shown = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-P-cbou", str(path)],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert shown.stderr == b""
    lines = {line.strip() for line in shown.stdout.decode().split("\n")}
    assert set(nasty) <= lines


def test_a_summary_is_the_first_sentence() -> None:
    assert summary(click.Command("x", help="Do this,\nthen e.g that: or so. And more.")) == (
        "Do this, then e.g that"
    )


# -- completion ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def completions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion") / "shells"
    names = [str(path.relative_to(folder)) for path in made_by("completions", folder)]
    assert names == [
        *("bash/sbusctl", "bash/sbusd"),
        *("fish/sbusctl.fish", "fish/sbusd.fish"),
        *("zsh/_sbusctl", "zsh/_sbusd"),
    ]
    return folder


@pytest.mark.parametrize(
    ("words", "completed"), [("sbusctl met", ["metrics"]), ("sbusctl sub --ord", ["--order"])]
)
def test_bash_completes(
    completions: Path, tmp_path: Path, words: str, completed: list[str]
) -> None:
    installed = tmp_path / "sbusctl"
    installed.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sbus.cli.sbusctl "$@"\n')
    installed.chmod(0o755)
    script = f"""
        . '{completions}/bash/sbusctl'
        COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        $(complete -p sbusctl | sed 's/.* -F \\([^ ]*\\) .*/\\1/') sbusctl
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    outcome = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert outcome.stdout.split() == completed


@pytest.mark.parametrize(
    ("shell", "name"),
    [
        pytest.param("zsh", "_sbusctl", marks=needs_tool("zsh", "zsh")),
        pytest.param("fish", "sbusctl.fish", marks=needs_tool("fish", "fish")),
    ],
)
def test_other_shells_understand_theirs(completions: Path, shell: str, name: str) -> None:
    subprocess.run([shell, "-n", str(completions / shell / name)], check=True, timeout=60)
