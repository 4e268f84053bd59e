"""The mutants of a module: each changes one node of its syntax tree.

A mutant is known by the function that it is in, the text of what it changes, how, and its ordinal
among those that are equal so far. This outlives edits elsewhere and, as the module is no part of
it, moves of the function; a line would not.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

MODULE: Final = "<module>"
"""The function of what stands in none."""

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_DROPPED = (ast.Expr, ast.AugAssign, ast.Raise, ast.Delete, ast.Break, ast.Continue)
_ANNOTATIONS = ("annotation", "returns", "decorator_list", "type_comment")
_STUB_DECORATORS = {"overload", "abstractmethod"}


@dataclass
class Mutant:
    """One change of a tree; `apply` makes it."""

    function: str
    operator: str
    before: str
    after: str
    line: int
    statement: ast.stmt
    body: list[ast.stmt] = field(repr=False)
    """The statements that the changed one is among."""
    change: Callable[[], None] = field(repr=False)
    ordinal: int = 0

    @property
    def key(self) -> str:
        return f"{self.function} | {self.operator} | {self.before} | {self.after} | {self.ordinal}"

    def apply(self, mark: ast.stmt) -> None:
        """Change the tree, with `mark` as the statement that runs before the changed one."""
        place = next(i for i, node in enumerate(self.body) if node is self.statement)
        self.body.insert(place, mark)
        self.change()


def mutants(tree: ast.Module) -> list[Mutant]:
    """All mutants of this tree, in the order of the text."""
    found = list(_Finder(tree).mutants())
    counts: Counter[str] = Counter()
    for mutant in found:
        mutant.ordinal = counts[key := mutant.key]
        counts[key] += 1
    return found


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function with its qualified name, as `Mutant.function` has it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _FUNCTION):
            yield prefix + node.name, node  # type: ignore[misc]  # both have what is used of them
        named = isinstance(node, _FUNCTION | ast.ClassDef)
        yield from functions(node, f"{prefix}{node.name}." if named else prefix)  # type: ignore[attr-defined]


def body_start(body: list[ast.stmt]) -> int:
    """The place of the first statement behind the docstring."""
    return int(bool(body) and _is_text(body[0]))


def _is_text(node: ast.AST) -> bool:
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str | type(...))  # type: ignore[attr-defined]


class _Finder:
    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._function = MODULE
        self._statement: tuple[ast.stmt, list[ast.stmt]]

    def mutants(self) -> Iterator[Mutant]:
        yield from self._in_body(self._tree.body)

    def _mutant(
        self, node: ast.AST, operator: str, after: str, change: Callable[[], None], before: str = ""
    ) -> Mutant:
        statement, body = self._statement
        before = before or ast.unparse(node)
        line = getattr(node, "lineno", statement.lineno)
        return Mutant(self._function, operator, before, after, line, statement, body, change)

    def _in_body(self, body: list[ast.stmt]) -> Iterator[Mutant]:
        for statement in body:
            self._statement = statement, body
            if isinstance(statement, _FUNCTION | ast.ClassDef):
                yield from self._in_definition(statement)
            elif not _is_left_alone(statement):
                if _may_be_dropped(statement):
                    yield self._dropped(statement, body)
                yield from self._in_node(statement)

    def _in_definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ) -> Iterator[Mutant]:
        outer = self._function
        prefix = "" if outer == MODULE else f"{outer}."
        if isinstance(node, _FUNCTION):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    yield from self._in_node(default)
        self._function = prefix + node.name
        if isinstance(node, _FUNCTION) and not _is_stub(node):
            start = node.body[body_start(node.body)]
            self._statement = start, node.body

            def return_at_once() -> None:
                place = next(i for i, other in enumerate(node.body) if other is start)
                node.body.insert(place, ast.Return(value=None))

            yield self._mutant(start, "early return", "return", return_at_once, "begin")
        yield from self._in_body(node.body)
        self._function = outer

    def _in_node(self, node: ast.AST) -> Iterator[Mutant]:
        """The mutants of a node and its children; each list of statements is a body of its own."""
        yield from self._of_node(node)
        for name, value in ast.iter_fields(node):
            if name in _ANNOTATIONS:
                continue
            children = value if isinstance(value, list) else [value]
            if children and isinstance(children[0], ast.stmt):
                kept = self._statement
                yield from self._in_body(children)
                self._statement = kept
                continue
            for child in children:
                if isinstance(child, ast.AST):
                    yield from self._in_node(child)

    def _of_node(self, node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.Compare):
            for place, operator in enumerate(node.ops):
                yield self._comparison(node, place, _COMPARISONS[type(operator)])
        elif isinstance(node, ast.Constant):
            yield from self._constants(node)
        elif isinstance(node, ast.Call):
            yield from self._swaps(node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._mutant(node, "not removed", ast.unparse(node.operand), _without_not(node))
        if isinstance(test := getattr(node, "test", None), ast.expr):
            yield from self._negations(node, test)

    def _comparison(self, node: ast.Compare, place: int, new: type[ast.cmpop]) -> Mutant:
        def change() -> None:
            node.ops[place] = new()

        return self._mutant(node, "comparison", f"{place} {new.__name__}", change)

    def _constants(self, node: ast.Constant) -> Iterator[Mutant]:
        old = node.value
        news: tuple[bool | float, ...] = ()
        if isinstance(old, bool):
            news = (not old,)
        elif isinstance(old, int | float):
            news = (old + 1, old - 1)
        around = ast.unparse(self._statement[0]).partition("\n")[0]
        for new in news:

            def change(new: bool | float = new) -> None:
                node.value = new

            yield self._mutant(node, "constant", repr(new), change, f"{old!r} in {around}")

    def _swaps(self, node: ast.Call) -> Iterator[Mutant]:
        for place, (one, other) in enumerate(zip(node.args, node.args[1:], strict=False)):
            is_starred = isinstance(one, ast.Starred) or isinstance(other, ast.Starred)
            if is_starred or ast.dump(one) == ast.dump(other):
                continue

            def change(place: int = place) -> None:
                node.args[place : place + 2] = reversed(node.args[place : place + 2])

            yield self._mutant(node, "swapped arguments", str(place), change)

    def _negations(self, node: ast.AST, test: ast.expr) -> Iterator[Mutant]:
        """A comparison has its opposite, and `not` can be removed; anything else gets one."""
        if isinstance(test, ast.Compare) or isinstance(getattr(test, "op", None), ast.Not):
            return

        def change() -> None:
            node.test = ast.UnaryOp(op=ast.Not(), operand=test)  # type: ignore[attr-defined]

        yield self._mutant(test, "not added", f"in {type(node).__name__}", change)

    def _dropped(self, statement: ast.stmt, body: list[ast.stmt]) -> Mutant:
        def change() -> None:
            body[next(i for i, node in enumerate(body) if node is statement)] = ast.Pass()

        return self._mutant(statement, "dropped statement", "pass", change)


def _without_not(node: ast.UnaryOp) -> Callable[[], None]:
    """Two of them keep the value a bool, and cancel each other."""

    def change() -> None:
        node.operand = ast.UnaryOp(op=ast.Not(), operand=node.operand)

    return change


def _may_be_dropped(statement: ast.stmt) -> bool:
    """A dropped name would be missed at once, so only what changes something is dropped."""
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return bool(statement.value) and not any(isinstance(node, ast.Name) for node in targets)
    return isinstance(statement, _DROPPED)


def _is_left_alone(statement: ast.stmt) -> bool:
    """Whether this is documentation, or says something to readers and tools alone."""
    if isinstance(statement, ast.If):
        return ast.unparse(statement.test) in ("TYPE_CHECKING", "__name__ == '__main__'")
    if isinstance(statement, ast.Assign):
        return ast.unparse(statement.targets[0]) in ("__all__", "__slots__")
    return isinstance(statement, ast.Assert | ast.Import | ast.ImportFrom) or _is_text(statement)


def _is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    rest = node.body[body_start(node.body) :]
    is_empty = not rest or isinstance(rest[0], ast.Pass)
    return is_empty or bool(decorators & _STUB_DECORATORS) or ast.unparse(rest[0]) == "return"
