"""Write what can be read off the repository: ``docs/rooms.md``, every room and file with the question it answers, and
``docs/reproduction.md``, what was found beside what the papers say.

``python docs/build.py`` writes both; ``--check`` fails where one is out of date; ``--take OUT`` first copies what
``thinwire reproduce --out OUT`` found into ``results/reproduction``.
"""

import ast
import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "src" / "thinwire"
ROOMS = REPOSITORY / "docs" / "rooms.md"
REPRODUCTION = REPOSITORY / "docs" / "reproduction.md"
RESULTS = REPOSITORY / "results" / "reproduction"
FLOORS = (
    "cli",
    "api",
    "reproduction",
    "experiments",
    "report",
    "plan",
    "soma",
    "subspaces",
    "data",
    "kernels",
    "comm",
    "launch",
    "runs",
    "config",
    "base",
)
HEAD = """# Rooms

Every room from the top floor down; a room imports from lower floors only. Written by `make docs` from the first
sentence of each file.
"""


def opening(path: Path) -> str:
    """The docstring's first paragraph, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def first_sentence(path: Path) -> str:
    """Up to the first full stop or question mark; an ellipsis ends nothing."""
    text = opening(path)
    end = re.search(r"(?<!\.\.)[.?](?=\s+[A-Z])", text)
    return text[: end.end()] if end else text


def rooms() -> str:
    lines = [HEAD]
    for floor in FLOORS:
        room = PACKAGE / floor
        lines += [f"## {floor}", "", opening(room / "__init__.py"), ""]
        for path in sorted(room.rglob("*.py")):
            if path.name == "__init__.py" and path.parent == room:
                continue
            sentence = first_sentence(path)
            lines.append(f"- `{path.relative_to(PACKAGE)}`: {sentence}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def reproduction() -> str:
    from thinwire.reproduction.page import page
    from thinwire.reproduction.registry import all_items

    return page(RESULTS, link="../results/reproduction", order=[item.name for item in all_items()])


def take_results(out: Path) -> None:
    from thinwire.base.files import read_json
    from thinwire.reproduction.page import take

    scale = read_json(out / "reproduction.json")["scale"]
    sys.stdout.write(f"taken: {', '.join(take(out, into=RESULTS / scale))}\n")


def main(arguments: list[str]) -> None:
    if "--take" in arguments:
        take_results(Path(arguments[arguments.index("--take") + 1]))
    for path, wanted in ((ROOMS, rooms()), (REPRODUCTION, reproduction())):
        if "--check" not in arguments:
            path.write_text(wanted, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != wanted:
            sys.exit(f"docs/{path.name} is out of date: run 'make docs'")


if __name__ == "__main__":
    main(sys.argv[1:])
