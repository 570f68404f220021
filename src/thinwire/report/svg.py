"""How does a figure get into a page that asks nothing of the network?  Inline SVG without links, scripts or shared ids.

matplotlib writes a standalone XML file: a document type with an address, metadata, comments, a style rule for ``*`` and
random ids. Inside an HTML page none of these is wanted; the ids are made unique to the page and the same in every call.
"""

import html
import io
import re
from typing import Any

DROPPED = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>|<style[^>]*>.*?</style>|\sxmlns(?::\w+)?=\"[^\"]*\"",
    re.DOTALL,
)
REFERENCE = re.compile(r'\bid="([^"]+)"|href="#([^"]+)"|url\(#([^)]+)\)')
SIZE = re.compile(r'\s(?:width|height)="[^"]*pt"')


def inline_svg(figure: Any, *, name: str, description: str) -> str:
    """A matplotlib ``Figure`` as an ``<svg>`` element.

    Args:
        figure: the figure, built without pyplot.
        name: letters, digits and hyphens; unique in the page, the prefix of every id.
        description: what a person who cannot see the figure should know.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = DROPPED.sub("", buffer.getvalue()).replace("xlink:href", "href").strip()
    head, separator, body = text.partition(">")
    head = SIZE.sub("", head).replace("<svg", f'<svg role="img" aria-label="{html.escape(description, quote=True)}"', 1)
    numbers: dict[str, int] = {}

    def rename(match: re.Match[str]) -> str:
        old = next(group for group in match.groups() if group is not None)
        return match.group(0).replace(old, f"{name}-{numbers.setdefault(old, len(numbers))}")

    return REFERENCE.sub(rename, head + separator + body)
