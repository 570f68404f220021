"""How does one Python module become two texts, its code and its documentation?  Docstrings are taken out of the code.

Kept together, the same sentences would stand in two domains, and the overlap screen would drop most of both.
"""

import ast
import inspect
import itertools
from typing import NamedTuple

DocumentedNode = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class ModuleText(NamedTuple):
    """A module's code without docstrings, and its docstrings, each under the line it documents."""

    code: str
    documentation: str


def split_module(text: str, *, name: str) -> ModuleText | None:
    """The two texts of a module; None where it is not valid Python of this version.

    Args:
        text: the module's source.
        name: its dotted name, the title of the documentation.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    lines = text.splitlines(keepends=True)
    # str.splitlines also parts at form feeds and the like, where Python does not count a line.
    if "".join(lines).count("\n") != len(lines) - (not text.endswith("\n")):
        lines = [line + "\n" for line in text.split("\n")]
    removed: set[int] = set()
    entries = [f"{name}\n"]
    for node in _documented(tree):
        docstring = node.body[0]
        entries.append(f"{_title(node, lines)}{inspect.cleandoc(ast.get_docstring(node, clean=False) or '')}\n")
        start, end = docstring.lineno - 1, docstring.end_lineno or docstring.lineno
        if lines[start].lstrip()[:1] in {'"', "'", "r", "R", "u"}:
            removed.update(range(start, end))
    code = "".join(line for number, line in enumerate(lines) if number not in removed)
    return ModuleText(code, "\n".join(entries) if len(entries) > 1 else "")


def _documented(tree: ast.Module) -> list[DocumentedNode]:
    """The module, classes and functions that have a docstring, in the order of the file."""
    waiting: list[ast.AST] = [tree]
    found: list[DocumentedNode] = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, DocumentedNode) and _has_docstring(node):
            found.append(node)
        blocks = (getattr(node, field, []) for field in ("body", "orelse", "handlers", "finalbody"))
        children = [child for child in itertools.chain(*blocks) if isinstance(child, ast.stmt | ast.ExceptHandler)]
        waiting += reversed(children)
    return found


def _has_docstring(node: DocumentedNode) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


def _title(node: DocumentedNode, lines: list[str]) -> str:
    return "" if isinstance(node, ast.Module) else lines[node.lineno - 1].strip() + "\n\n"
