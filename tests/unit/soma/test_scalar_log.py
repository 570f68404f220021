"""Does the scalar log give back what was acknowledged, and refuse what is none?"""

from pathlib import Path

import numpy as np
import pytest

from thinwire.base.errors import UserError
from thinwire.runs.record_log import RecordLog
from thinwire.soma.scalar_log import Record, ScalarLog, UpdateRecord, ValidationRecord, read

DIFFERENCES = np.array([[1e-3, -2e-17, 0.1], [np.pi, 5e-324, -0.0]])
HEADER = {"fingerprint": "abc", "expert": -1}


def update(number: int) -> UpdateRecord:
    return UpdateRecord(number, 1e-3, 2.5e-3, 5.5, 0.25 * number, 2**64 - number, DIFFERENCES * number)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    log = ScalarLog(tmp_path / "scalars.log", good_bytes=0, header=HEADER)
    log.append(ValidationRecord(0, 5.545))
    for number in (1, 2, 3):
        log.append(update(number))
    log.close()
    return tmp_path / "scalars.log"


def assert_equal(one: Record, other: Record) -> None:
    assert type(one) is type(other)
    if isinstance(one, UpdateRecord):
        assert one[:-1] == other[:-1]
        assert one.differences.tobytes() == other[-1].tobytes()
        assert one.differences.shape == other[-1].shape
    else:
        assert one == other


def test_every_bit_comes_back(path: Path) -> None:
    contents = read(path)
    assert contents.header.items() >= HEADER.items()
    assert (contents.good_bytes, contents.torn_bytes) == (path.stat().st_size, 0)
    for found, written in zip(contents.records, [ValidationRecord(0, 5.545), *map(update, (1, 2, 3))], strict=True):
        assert_equal(found, written)


def test_a_record_of_64_directions_takes_512_bytes_and_a_few(tmp_path: Path) -> None:
    """512 bytes an update; rates, loss, clock, digest and checksums add 61."""
    log = ScalarLog(tmp_path / "scalars.log", good_bytes=0, header={})
    before = (tmp_path / "scalars.log").stat().st_size
    log.append(update(1)._replace(differences=np.zeros((1, 64))))
    log.close()
    assert (tmp_path / "scalars.log").stat().st_size - before == 512 + 61


def test_a_cut_at_any_byte_of_the_last_record_drops_that_record_alone(path: Path) -> None:
    data = path.read_bytes()
    one_record = 12 + 49 + DIFFERENCES.nbytes
    for cut in range(len(data) - one_record, len(data)):
        path.write_bytes(data[:cut])
        contents = read(path)
        assert [record.update for record in contents.records] == [0, 1, 2]
        assert contents.torn_bytes == cut - (len(data) - one_record)


def test_an_absent_log_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == ({}, [], 0, 0)


def test_a_torn_header_is_written_anew(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])
    contents = read(path)
    assert (contents.header, contents.records, contents.good_bytes) == ({}, [], 0)
    ScalarLog(path, good_bytes=0, header=HEADER).close()
    assert read(path).header["fingerprint"] == "abc"


@pytest.mark.parametrize("payload", [b'H{"format": "another"}', b"U not a header", b'H{"format": null}'])
def test_a_log_of_something_else_is_refused(tmp_path: Path, payload: bytes) -> None:
    log = RecordLog.open_at(tmp_path / "log", good_bytes=0)
    log.append(payload)
    log.close()
    with pytest.raises(UserError, match="not a scalar log"):
        read(tmp_path / "log")


@pytest.mark.parametrize("numbers", [(1, 3), (2,), (1, 1), (2, 1)])
def test_a_log_that_skips_an_update_is_refused(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    log = ScalarLog(tmp_path / "log", good_bytes=0, header=HEADER)
    for number in numbers:
        log.append(update(number))
    log.close()
    with pytest.raises(UserError, match="missing or out of order"):
        read(tmp_path / "log")


def test_a_validation_of_another_update_is_refused(tmp_path: Path) -> None:
    log = ScalarLog(tmp_path / "log", good_bytes=0, header=HEADER)
    log.append(update(1))
    log.append(ValidationRecord(2, 1.0))
    log.close()
    with pytest.raises(UserError, match="from update 1 to 2"):
        read(tmp_path / "log")
