"""How does a Parquet file become documents?  One row a document, read in batches (optional extra [parquet])."""

from collections.abc import Iterator
from pathlib import Path

from thinwire.base.errors import UserError, missing_extra
from thinwire.data.documents import Document, ReadOptions
from thinwire.data.json_lines import record_document, text_bytes

BATCH_ROWS = 256
OPTIONAL_COLUMNS = ("id", "source", "domain")


def read_parquet_documents(path: Path, *, name: str, origin: str, options: ReadOptions) -> Iterator[Document]:
    """Every row, in order; arguments as for ``read_json_documents``.

    Raises:
        UserError: pyarrow is not installed; the file is damaged; the text column is missing or holds something else.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("pyarrow", extra="parquet", needed_for="reading .parquet files") from error
    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
            columns = file.schema_arrow.names
            if options.text_field not in columns:
                fix = f"name the column with --text-field (columns here: {', '.join(columns)})"
                raise UserError(f"the file has no column '{options.text_field}'", where=str(path), fix=fix)
            wanted = list(dict.fromkeys([options.text_field, *(c for c in OPTIONAL_COLUMNS if c in columns)]))
            number = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=wanted, use_threads=False):
                for row in batch.to_pylist():
                    number += 1
                    payload = _payload(row[options.text_field], where=f"{path}, row {number}")
                    yield record_document(row, payload, name=name, origin=origin, fallback_id=f"row {number}")
    except pyarrow.ArrowException as error:
        raise UserError("a Parquet file cannot be read", where=f"{path}: {error}", fix="fetch it again") from error


def _payload(value: object, *, where: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return text_bytes(value)
    fix = "name the column that holds the text with --text-field"
    raise UserError(f"the text column holds a {type(value).__name__}, not text", where=where, fix=fix)
