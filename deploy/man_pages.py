"""Manual pages made from the command lines: the text of `--help`, in roff.

A command's help becomes DESCRIPTION, its options become OPTIONS, and the paragraph of its epilog
that begins with "Example:" or "Examples:" becomes EXAMPLES; the rest of the epilog becomes NOTES. A
paragraph that begins with `\\b` keeps its line breaks. Every character that means something to roff
is escaped.
"""

import inspect
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import click

import sbus
from sbus.cli.sbusctl.command import sbusctl
from sbus.cli.sbusd.command import sbusd

EXIT_STATUSES = {
    "sbusd": [
        ("0", "The bus ended as requested, or runs in the background."),
        ("1", "Failure; one line on standard error gives the reason."),
        ("2", "Invalid command line."),
    ],
    "sbusctl": [
        ("0", "Success."),
        (
            "1",
            "The bus, a file or the system refused; one line on standard error gives the reason.",
        ),
        ("2", "Invalid command line."),
        ("130", "Interrupted with Ctrl-C."),
        ("141", "The reader of its output has gone."),
    ],
}


def write_all(folder: Path) -> None:
    """Write the page of each command that is not hidden."""
    for command, name, section in ((sbusd, "sbusd", 8), (sbusctl, "sbusctl", 1)):
        context = click.Context(command, info_name=name, **command.context_settings)
        for page, text in pages(context, section):
            (folder / f"{page}.{section}").write_text(text)


def pages(context: click.Context, section: int) -> Iterator[tuple[str, str]]:
    """Name and text of a command's page, and of those of its verbs."""
    yield context.command_path.replace(" ", "-"), page(context, section)
    for name, verb in verbs(context):
        inner = click.Context(verb, info_name=name, parent=context, **verb.context_settings)
        yield from pages(inner, section)


def verbs(context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """The verbs of a group that are not hidden."""
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            verb = context.command.get_command(context, name)
            if verb is not None and not verb.hidden:
                yield name, verb


def page(context: click.Context, section: int) -> str:
    """The page of one command."""
    command, path = context.command, context.command_path
    name = path.replace(" ", "-")
    described = list(paragraphs(command.help or ""))
    examples, notes = split_epilog(command.epilog or "")
    date = time.strftime(
        "%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    )
    lines = [
        f'.TH "{escape(name.upper())}" "{section}" "{date}" "sbus {sbus.__version__}" "sbus"',
        *(".SH NAME", f"{escape(name)} \\- {escape(summary(command))}"),
        *(".SH SYNOPSIS", f"\\fB{escape(path)}\\fR"),
        escape(" ".join(command.collect_usage_pieces(context))),
        *(".SH DESCRIPTION", *set_paragraphs(described)),
        *(".SH OPTIONS", *options(context)),
    ]
    listed = list(verbs(context))
    if listed:
        lines.append(".SH VERBS")
        for verb, its in listed:
            lines += [".TP", f"\\fB{escape(verb)}\\fR", escape(summary(its))]
    if notes:
        lines += [".SH NOTES", *set_paragraphs(notes)]
    lines.append(".SH EXIT STATUS")
    for status, meaning in EXIT_STATUSES[path.split(" ")[0]]:
        lines += [".TP", f"\\fB{status}\\fR", escape(meaning)]
    if examples:
        lines += [".SH EXAMPLES", *set_paragraphs(examples)]
    lines += [".SH SEE ALSO", *see_also(context, [verb for verb, _ in listed])]
    return "\n".join(lines) + "\n"


def summary(command: click.Command) -> str:
    """The first sentence of a command's help, without its full stop."""
    text = command.short_help or (command.help or "").partition("\n\n")[0]
    first = re.split(r"(?<=[.:])\s", " ".join(text.split()) + " ")[0]
    return first.rstrip(".: ")


def options(context: click.Context) -> Iterator[str]:
    """The options as `--help` describes them."""
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None:
            names, meaning = record
            yield ".TP"
            yield re.sub(r"(?<![\w=|-])(\\-(?:\\-)?[\w\\-]+)", r"\\fB\1\\fR", escape(names))
            yield from set_paragraphs(list(paragraphs(meaning)))[1:]


def see_also(context: click.Context, listed: list[str]) -> Iterator[str]:
    """References to related pages."""
    near = [f"{context.command_path}-{verb}(1)" for verb in listed]
    if context.parent is not None:
        near.append(f"{context.parent.command_path}(1)")
    elif context.command_path == "sbusd":
        near.append("sbusctl(1)")
    if context.command_path != "sbusd":
        near.append("sbusd(8)")
    yield ",\n".join(
        re.sub(r"(.+)(\(\d\))", r"\\fB\1\\fR\2", escape(reference)) for reference in near
    )


# -- text ------------------------------------------------------------------------------------------
def paragraphs(text: str) -> Iterator[tuple[bool, list[str]]]:
    """The paragraphs of a help text: whether each keeps its line breaks, and its lines."""
    for block in re.split(r"\n{2,}", inspect.cleandoc(text.partition("\f")[0])):
        lines = block.strip("\n").split("\n")
        verbatim = lines[0].strip() == "\b"
        lines = lines[verbatim:]
        if any(lines):
            yield verbatim, lines


def split_epilog(
    epilog: str,
) -> tuple[list[tuple[bool, list[str]]], list[tuple[bool, list[str]]]]:
    """The paragraphs with examples, without their heading, and the other paragraphs."""
    examples, notes = [], []
    for verbatim, lines in paragraphs(epilog):
        if re.fullmatch(r"Examples?:", lines[0].strip()):
            lines = inspect.cleandoc("\n".join(["", *lines[1:]])).split("\n")
            examples.append((verbatim, lines))
        else:
            notes.append((verbatim, lines))
    return examples, notes


def set_paragraphs(texts: list[tuple[bool, list[str]]]) -> list[str]:
    """Paragraphs in roff."""
    lines: list[str] = []
    for verbatim, text in texts:
        lines.append(".PP")
        if verbatim:
            lines += [".RS 4", ".EX", *map(escape, text), ".EE", ".RE"]
        else:
            lines.append(escape(" ".join(line.strip() for line in text)))
    return lines


_ESCAPES = {
    "\\": "\\(rs",
    "-": "\\-",
    "'": "\\(aq",
    "`": "\\(ga",
    "^": "\\(ha",
    "~": "\\(ti",
    '"': "\\(dq",
}


def escape(line: str) -> str:
    """A line without requests and escape sequences, in which quotes stay ASCII."""
    escaped = "".join(_ESCAPES.get(character, character) for character in line)
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
