"""Which split does a document belong to?  The one its content's hash says, never its position.

choice: the paper screens a separate set of documents (appendix L) and does not split one corpus; a hash of the content
and the seed keeps exact copies in one split and gives the same answer whatever the order of the sources.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from thinwire.data.corpus import Split

ADDRESS_RANGE = 2**64
# choice: a corpus that fits these limits is split by rank, so that no split ends empty by chance.
SMALL_CORPUS_DOCUMENTS = 2000
SMALL_CORPUS_BYTES = 64 * 1024 * 1024
MIN_EVALUATION_DOCUMENTS = 16


class SplitRule(NamedTuple):
    """Addresses below ``test_below`` are test, those below ``valid_below`` validation, the others training."""

    test_below: int
    valid_below: int

    def split(self, address: int) -> Split:
        if address < self.test_below:
            return "test"
        return "valid" if address < self.valid_below else "train"


def content_address(payload: bytes, *, seed: int) -> int:
    """A 64-bit hash of the document's bytes and the seed."""
    key = hashlib.blake2b(f"thinwire/split/{seed}".encode(), digest_size=16).digest()
    return int.from_bytes(hashlib.blake2b(payload, digest_size=8, key=key).digest(), "little")


def fraction_rule(*, valid_fraction: float, test_fraction: float) -> SplitRule:
    """The rule for a corpus of many documents: a fraction of the range of addresses."""
    test_below = int(test_fraction * ADDRESS_RANGE)
    return SplitRule(test_below, test_below + int(valid_fraction * ADDRESS_RANGE))


def rank_rule(addresses: Sequence[int], *, valid_fraction: float, test_fraction: float) -> SplitRule:
    """The rule for a small corpus: the lowest addresses, in numbers that can be evaluated.

    choice: a split that is wanted gets at least 16 documents, but no more than an eighth of all (and at least one
    where there are three documents); a single document is training text.
    """
    distinct = sorted(set(addresses))
    num_test = _count(len(distinct), test_fraction)
    num_valid = min(_count(len(distinct), valid_fraction), max(len(distinct) - num_test - 1, 0))
    bounds = [*distinct, ADDRESS_RANGE]
    return SplitRule(bounds[num_test] if num_test else 0, bounds[num_test + num_valid] if num_test + num_valid else 0)


def _count(num_documents: int, fraction: float) -> int:
    if fraction == 0 or num_documents < 3:
        return 0
    wanted = max(round(fraction * num_documents), min(MIN_EVALUATION_DOCUMENTS, num_documents // 8), 1)
    return min(wanted, num_documents - 2)
