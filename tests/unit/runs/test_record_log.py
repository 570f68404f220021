"""Does the log tell a torn end, which it drops, from damage in the middle, which it refuses with its position?"""

import errno
import os
import resource
from pathlib import Path

import pytest

from thinwire.base.errors import UserError
from thinwire.runs.record_log import HEADER, RecordLog, scan

PAYLOADS = [b"first", b"", b"a longer third record" * 3, b"last record"]


def positions() -> list[int]:
    """Where each record begins, and where the log ends."""
    found = [0]
    for payload in PAYLOADS:
        found.append(found[-1] + HEADER.size + len(payload))
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "records.log"
    log = RecordLog.open_at(path, good_bytes=0)
    for payload in PAYLOADS:
        log.append(payload)
    log.sync()
    log.close()
    return path


def test_what_was_appended_is_read(path: Path) -> None:
    assert scan(path) == (PAYLOADS, positions()[-1], 0)


def test_an_absent_log_is_empty(tmp_path: Path) -> None:
    assert scan(tmp_path / "none.log") == ([], 0, 0)


def test_a_cut_at_any_byte_drops_the_record_it_cuts_and_nothing_else(path: Path) -> None:
    data, starts = path.read_bytes(), positions()
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        whole = max(i for i, start in enumerate(starts) if start <= cut)
        assert scan(path) == (PAYLOADS[:whole], starts[whole], cut - starts[whole])


@pytest.mark.parametrize("record", [0, 1, 2])
def test_any_flipped_bit_of_an_earlier_record_is_refused_with_its_position(path: Path, record: int) -> None:
    data, start, end = path.read_bytes(), positions()[record], positions()[record + 1]
    for position in range(start, end):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(UserError, match="damaged") as caught:
                scan(path)
            assert caught.value.where == f"{path}, byte {start}"


def test_no_flipped_bit_of_the_last_record_is_taken_for_data(path: Path) -> None:
    """In its payload it looks like a torn write and is dropped; in its header it is refused."""
    data, start = path.read_bytes(), positions()[3]
    for position in range(start, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        if position >= start + HEADER.size:
            assert scan(path) == (PAYLOADS[:3], start, len(data) - start)
        else:
            with pytest.raises(UserError, match="damaged") as caught:
                scan(path)
            assert caught.value.where == f"{path}, byte {start}"


@pytest.mark.parametrize("zeros", [1, HEADER.size - 1, HEADER.size, 4096])
def test_a_tail_of_zeros_is_a_torn_end(path: Path, zeros: int) -> None:
    """What a file system leaves that lengthened the file before a loss of power."""
    path.write_bytes(path.read_bytes() + bytes(zeros))
    assert scan(path) == (PAYLOADS, positions()[-1], zeros)


def test_a_record_removed_from_the_middle_is_only_missed_by_its_reader(path: Path) -> None:
    """The frames stay whole: order and number of records are the business of who wrote them."""
    data, starts = path.read_bytes(), positions()
    path.write_bytes(data[: starts[1]] + data[starts[2] :])
    assert scan(path).payloads == [PAYLOADS[0], *PAYLOADS[2:]]


def test_opening_cuts_the_torn_end_and_goes_on_behind_it(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-3])
    log = RecordLog.open_at(path, good_bytes=scan(path).good_bytes)
    log.append(b"another")
    log.close()
    assert scan(path).payloads == [*PAYLOADS[:3], b"another"]
    assert scan(path).torn_bytes == 0


def test_a_write_that_fails_is_taken_back_and_names_the_file(path: Path) -> None:
    size = path.stat().st_size
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, size + 20))
        log = RecordLog.open_at(path, good_bytes=size)
        try:
            log.append(b"x" * 100)
        except OSError as error:
            os._exit(0 if (error.errno, error.filename) == (errno.EFBIG, str(path)) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.stat().st_size == size
    assert scan(path) == (PAYLOADS, size, 0)
