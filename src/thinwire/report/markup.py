"""How does text from a run folder become HTML that cannot do anything?  Escaping, tables, definition lists, figures.

Characters that a page cannot show, or that change how the text around them is shown (control and format characters,
bytes that are not UTF-8), appear as their code.
"""

import html
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

UNSHOWABLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
SHOWN_CONTROLS = frozenset("\n\t")
RAW_BYTE_FIRST, RAW_BYTE_LAST = 0xDC80, 0xDCFF
"""``surrogateescape`` stands for byte 0x80 with U+DC80, and so on."""


def _code(character: str) -> str:
    point = ord(character)
    if RAW_BYTE_FIRST <= point <= RAW_BYTE_LAST:
        return f"\\x{point - 0xDC00:02x}"
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}"


def _replace_unshowable(value: str, write: Callable[[str], str]) -> str:
    return "".join(
        write(_code(c)) if c not in SHOWN_CONTROLS and unicodedata.category(c) in UNSHOWABLE_CATEGORIES else c
        for c in value
    )


def attribute(value: str) -> str:
    """Plain text for an attribute or a title, not yet escaped for HTML."""
    return _replace_unshowable(value, lambda code: code)


def text(value: object) -> str:
    """Escaped text; a code such as ``\\x00`` is set apart from the same letters in the text."""
    parts = re.split("(\x00code:[^\x00]*\x00)", _replace_unshowable(str(value), lambda code: f"\x00code:{code}\x00"))
    return "".join(
        f'<span class="code">{html.escape(part[6:-1])}</span>' if part.startswith("\x00code:") else html.escape(part)
        for part in parts
    )


def bytes_text(value: bytes) -> str:
    """Escaped text of bytes; what is not UTF-8 appears byte for byte."""
    return text(value.decode("utf-8", "surrogateescape"))


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, caption: str, numeric_from: int = 1) -> str:
    """A table whose first column names the row; columns from ``numeric_from`` on are numbers. Cells are escaped."""
    align = [' class="number"' if index >= numeric_from else "" for index in range(len(columns))]
    head = "".join(f'<th scope="col"{align[i]}>{text(column)}</th>' for i, column in enumerate(columns))
    body = "".join(
        f'<tr><th scope="row">{text(row[0])}</th>'
        + "".join(f"<td{align[i]}>{text(cell)}</td>" for i, cell in enumerate(row[1:], start=1))
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{html.escape(attribute(caption))}"><table>'
        f"<caption>{text(caption)}</caption><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n"
    )


def definitions(pairs: Sequence[tuple[str, object]]) -> str:
    rows = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>\n" for name, value in pairs)
    return f"<dl>{rows}</dl>\n"


def figure(svg: str, *, caption: str, style: str = "") -> str:
    """``svg`` is an element from ``inline_svg``; the caption is escaped here."""
    classes = f"card {style}".strip()
    note = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return f'<figure class="{classes}">{svg}{note}</figure>\n'


def paragraph(value: str, *, style: str = "") -> str:
    return f'<p class="{style}">{text(value)}</p>\n' if style else f"<p>{text(value)}</p>\n"


def bullets(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{text(item)}</li>\n" for item in items) + "</ul>\n"
