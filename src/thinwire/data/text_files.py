"""How does a plain text file become documents?  One file is one document; a long one is cut at line ends."""

from collections.abc import Iterator
from pathlib import Path

SNIFF_BYTES = 65536
# Control bytes that ordinary text holds: backspace, tab, line feed, form feed, carriage return, escape.
TEXT_CONTROLS = {8, 9, 10, 12, 13, 27}
BINARY_CONTROLS = bytes(byte for byte in range(1, 32) if byte not in TEXT_CONTROLS)
MAX_CONTROL_FRACTION = 0.05


def read_pieces(path: Path, *, piece_bytes: int) -> Iterator[bytes]:
    """The file's bytes in pieces of at most ``piece_bytes``; joined they are the file, whatever its encoding.

    choice: a piece ends after its last line end, or, where it has none, at the limit, moved back so as not to part a
    UTF-8 character; the paper has no documents of this kind.
    """
    with path.open("rb") as handle:
        rest = b""
        while True:
            block = rest + handle.read(piece_bytes - len(rest))
            if len(block) < piece_bytes:
                if block:
                    yield block
                return
            cut = block.rfind(b"\n") + 1 or _character_end(block)
            yield block[:cut]
            rest = block[cut:]


def _character_end(block: bytes) -> int:
    """The largest cut that leaves no UTF-8 character in two, looking at the last four bytes."""
    for back in range(1, min(4, len(block) - 1) + 1):
        byte = block[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(block) - back if needed > back else len(block)
        if byte < 0x80:
            break
    return len(block)


def looks_binary(path: Path) -> bool:
    """A NUL byte, or one byte in twenty a control byte that text does not use, in the first 64 KiB."""
    with path.open("rb") as handle:
        head = handle.read(SNIFF_BYTES)
    num_controls = len(head) - len(head.translate(None, BINARY_CONTROLS))
    return b"\x00" in head or num_controls > MAX_CONTROL_FRACTION * len(head)
