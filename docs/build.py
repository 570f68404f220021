"""Write what can be read off the code: ``docs/rooms.md``, every room and file with the question it answers.

``python docs/build.py`` writes it; ``python docs/build.py --check`` fails where it is out of date.
"""

import ast
import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "src" / "thinwire"
PAGE = REPOSITORY / "docs" / "rooms.md"
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


def page() -> str:
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


if __name__ == "__main__":
    wanted = page()
    if "--check" in sys.argv:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != wanted:
            sys.exit("docs/rooms.md is out of date: run 'make docs'")
    else:
        PAGE.write_text(wanted, encoding="utf-8")
