"""A Sphinx extension: parts of documents that are made of the code, so that they cannot be wrong.

Where a document says `<!-- generated: NAME -->`, the site has what the function of that name below
writes, in Markdown: tables of the fields of msgspec structs, their types as the decoder checks
them, and the docstrings that stand beside them.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, get_args

import msgspec
from msgspec import inspect as types
from sphinx.application import Sphinx

from sbus.cli.metrics.families import FAMILIES
from sbus.limits import Limits
from sbus.protocol import admin
from sbus.protocol.admin_results import MeResult
from sbus.protocol.admin_streams import StreamPacket

_MARKER = re.compile(r"<!-- generated: ([\w-]+) -->")
Struct = type[msgspec.Struct]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", fill_in)
    return {"parallel_read_safe": True}


def fill_in(_app: Sphinx, _docname: str, content: list[str]) -> None:
    """Replace the markers of a document; a KeyError for one that means nothing."""
    content[0] = _MARKER.sub(lambda marker: "\n".join(PARTS[marker[1]]()), content[0])


# -- the admin protocol ----------------------------------------------------------------------------
def admin_verbs() -> Iterator[str]:
    """A chapter for each verb: what it does, its request, its result."""
    for request, result in admin.RESULTS.items():
        yield f"### `{_tag(request)}`\n"
        yield f"{_docstring(request)}\n"
        own = [field for field in types.type_info(request).fields if field.name not in _OF_ALL]  # type: ignore[attr-defined]
        if own:
            yield from _fields(request, own)
        yield f"\nResult: {_link(result)}.\n"


_OF_ALL = ("id", "version")
"""Fields of every request."""


def admin_records() -> Iterator[str]:
    """A chapter for each object that a result is, or holds, in the order of their names."""
    reached: dict[str, Struct] = {}
    results: list[Struct] = [*admin.RESULTS.values(), MeResult]
    for result in results:
        _reach(result, reached)
    yield from _records(reached)


def admin_streams() -> Iterator[str]:
    """A chapter for each packet of a stream, and then what those hold."""
    reached: dict[str, Struct] = {}
    for packet in get_args(StreamPacket):
        yield f"### `{_tag(packet)}`\n"
        yield f"{_docstring(packet)}\n"
        yield from _fields(packet, types.type_info(packet).fields)  # type: ignore[attr-defined]
        yield ""
        for field in types.type_info(packet).fields:  # type: ignore[attr-defined]
            for inner in _structs(field.type):
                _reach(inner, reached)
    yield from _records(reached)


def _records(structs: dict[str, Struct]) -> Iterator[str]:
    for _, struct in sorted(structs.items()):
        yield f"### {struct.__name__}\n"
        yield f"{_docstring(struct)}\n"
        yield from _fields(struct, types.type_info(struct).fields)  # type: ignore[attr-defined]
        yield ""


def _reach(struct: Struct, reached: dict[str, Struct]) -> None:
    if struct.__name__ not in reached:
        reached[struct.__name__] = struct
        for field in types.type_info(struct).fields:  # type: ignore[attr-defined]
            for inner in _structs(field.type):
                _reach(inner, reached)


def _structs(found: types.Type) -> Iterator[Struct]:
    if isinstance(found, types.StructType):
        yield found.cls
    for part in (
        *getattr(found, "types", ()),
        *getattr(found, "item_types", ()),
        *(getattr(found, name) for name in ("item_type", "value_type") if hasattr(found, name)),
    ):
        yield from _structs(part)


def _tag(struct: Struct) -> str:
    tag = struct.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


# -- limits ----------------------------------------------------------------------------------------
def limits() -> Iterator[str]:
    """A table for each group of limits."""
    reasons = _attribute_docs(Limits)
    defaults = {field.name: field.default for field in msgspec.structs.fields(Limits)}
    for title, names in _groups(Limits):
        yield f"## {title[0].upper()}{title[1:]}\n"
        yield "| limit | default | unit | reason |\n|---|---:|---|---|"
        for name in names:
            value = defaults[name]
            shown = f"{value:,}" if isinstance(value, int) else f"{value:g}"
            yield f"| `{name}` | {shown} | {_unit(name)} | {_cell(reasons[name])} |"
        yield ""


def _unit(name: str) -> str:
    words = name.removesuffix("_max").split("_")
    return "messages per second" if words[-2:] == ["per", "second"] else words[-1]


def _groups(struct: Struct) -> list[tuple[str, list[str]]]:
    """The fields of a struct by the comments `# -- title ---` between them."""
    groups: list[tuple[str, list[str]]] = []
    for line in inspect.getsource(struct).split("\n"):
        if title := re.fullmatch(r"    # -- (.+?) -+", line):
            groups.append((title[1], []))
        elif field := re.match(r"    (\w+): ", line):
            groups[-1][1].append(field[1])
    return groups


# -- metrics ---------------------------------------------------------------------------------------
def metrics() -> Iterator[str]:
    """A table of every metric."""
    yield "| metric | kind | labels | meaning |\n|---|---|---|---|"
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        yield f"| `{family.name}` | {family.kind} | {labels} | {_cell(family.meaning)} |"


PARTS: dict[str, Callable[[], Iterable[str]]] = {
    "admin-verbs": admin_verbs,
    "admin-records": admin_records,
    "admin-streams": admin_streams,
    "limits": limits,
    "metrics": metrics,
}


# -- structs ---------------------------------------------------------------------------------------
def _fields(struct: Struct, fields: Iterable[types.Field]) -> Iterator[str]:
    meanings = _attribute_docs(struct)
    yield "| field | type | meaning |\n|---|---|---|" if meanings else "| field | type |\n|---|---|"
    for field in fields:
        kind = describe(field.type)
        if not field.required:
            default = msgspec.json.encode(_default(field)).decode()
            kind += f"; `{default}` where it is not given"
        row = f"| `{field.encode_name}` | {kind} |"
        yield f"{row} {_cell(meanings.get(field.name, ''))} |" if meanings else row


def _default(field: types.Field) -> object:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    factory = field.default_factory
    assert callable(factory)
    return factory()


def describe(found: types.Type) -> str:
    """A type as JSON has it, with the bounds that are checked."""
    match found:
        case types.StructType(cls):
            return _link(cls)
        case types.ListType(item_type):
            most = found.max_length
            return f"list of {describe(item_type)}" + (f", at most {most}" if most else "")
        case types.VarTupleType(item_type):
            return f"list of {describe(item_type)}"
        case types.TupleType(item_types):
            return f"list of {len(item_types)}: {', '.join(map(describe, item_types))}"
        case types.DictType(value_type=value_type):
            return f"object, {describe(value_type)} by name"
        case types.UnionType(parts):
            return " or ".join(describe(part) for part in parts)
        case types.LiteralType(values):
            return " or ".join(f"`{msgspec.json.encode(value).decode()}`" for value in values)
        case types.StrType():
            return "text" + (f", at most {found.max_length} characters" if found.max_length else "")
        case types.IntType() | types.FloatType():
            return ("integer" if isinstance(found, types.IntType) else "number") + _range(found)
    return _NAMES[type(found)]


_NAMES: dict[type[types.Type], str] = {
    types.AnyType: "anything",
    types.BoolType: "boolean",
    types.BytesType: "text, base64",
    types.NoneType: "null",
}


def _range(found: Any) -> str:
    if found.le is not None:
        return f", {_number(found.ge if found.ge is not None else found.gt)} to {_number(found.le)}"
    return "" if found.ge is None else f", at least {_number(found.ge)}"


def _number(bound: float) -> str:
    for power in (32, 40, 63):
        if bound == 2**power - 1:
            return f"2^{power} − 1"
        if bound == 2**power:
            return f"2^{power}"
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def _link(struct: Struct) -> str:
    return f"[{struct.__name__}](#{struct.__name__.lower()})"


def _docstring(struct: Struct) -> str:
    return inspect.cleandoc(struct.__doc__ or "")


def _attribute_docs(struct: Struct) -> dict[str, str]:
    """The texts that stand behind the fields of a struct."""
    docs: dict[str, str] = {}
    (definition,) = ast.parse(inspect.getsource(struct)).body
    assert isinstance(definition, ast.ClassDef)
    for field, behind in pairwise(definition.body):
        match field, behind:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                docs[name] = inspect.cleandoc(text)
    return docs


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
