"""Does the sign log give back what was put in, two bits a pair, and refuse what is damaged?"""

from pathlib import Path

import numpy as np
import pytest

from thinwire.base.errors import UserError
from thinwire.soma.eggroll_log import SignLog, SignRecord, ValidationRecord, pack_signs, read, unpack_signs

HEADER = {"fingerprint": "abc", "seed": 1}


def record_of(update: int, *, num_pairs: int = 9) -> SignRecord:
    signs = np.random.default_rng(update).integers(-1, 2, num_pairs).astype(np.int8)
    return SignRecord(update, 3.5, 0.25, 0.01, 12.5, 2**63 + update, num_pairs, pack_signs(signs))


def write(path: Path, records: list[SignRecord | ValidationRecord]) -> None:
    log = SignLog(path, good_bytes=0, header=HEADER)
    for record in records:
        log.append(record)
    log.close()


@pytest.mark.parametrize("num_pairs", [1, 3, 4, 5, 1023])
def test_signs_come_back_from_two_bits_each(num_pairs: int) -> None:
    signs = np.random.default_rng(num_pairs).integers(-1, 2, num_pairs).astype(np.int8)
    packed = pack_signs(signs)
    assert len(packed) == -(-num_pairs // 4)
    np.testing.assert_array_equal(unpack_signs(packed, num_pairs=num_pairs), signs)


def test_records_come_back_in_order(tmp_path: Path) -> None:
    records = [ValidationRecord(0, 5.0), record_of(1), record_of(2), ValidationRecord(2, 4.5)]
    write(tmp_path / "log", records)
    found = read(tmp_path / "log")
    assert found.records == records
    assert found.header["fingerprint"] == "abc"
    assert (found.last_update, found.torn_bytes) == (2, 0)
    assert set(found.records[1].signs.tolist()) <= {-1, 0, 1}


def test_a_missing_record_and_another_log_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "log", [record_of(1), record_of(3)])
    with pytest.raises(UserError, match="from update 1 to 3"):
        read(tmp_path / "log")
    from thinwire.soma.scalar_log import ScalarLog

    ScalarLog(tmp_path / "other", good_bytes=0, header={}).close()
    with pytest.raises(UserError, match="not a sign log"):
        read(tmp_path / "other")
