"""placeholder"""

from collections.abc import Iterator

from thinwire.data.documents import Document, InputRecord, ReadOptions, Source

PYTHON_SOURCE = "python"


class PythonSource(Source):
    """placeholder"""

    argument = PYTHON_SOURCE

    def inputs(self) -> list[InputRecord]:
        return []

    def documents(self, options: ReadOptions) -> Iterator[Document]:  # noqa: ARG002
        yield from ()
