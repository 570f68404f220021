"""Do small numbers come back from their bytes, whatever their count?"""

import pytest
import torch

from thinwire.subspaces.codecs.bits import pack_bits, packed_size, unpack_bits


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 16, 61])
def test_every_count_comes_back(bits: int, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    numbers = torch.randint(0, 1 << bits, (3, count), generator=generator).to(torch.uint8)
    packed = pack_bits(numbers, bits=bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (3, packed_size(count, bits=bits))
    assert torch.equal(unpack_bits(packed, bits=bits, count=count), numbers)


def test_the_first_number_has_the_lowest_bits() -> None:
    assert pack_bits(torch.tensor([1, 0, 1, 1, 0, 0, 0, 0, 1], dtype=torch.uint8), bits=1).tolist() == [13, 1]
    assert pack_bits(torch.tensor([3, 15, 9], dtype=torch.uint8), bits=4).tolist() == [0xF3, 0x09]
    assert pack_bits(torch.tensor([3, 0, 2], dtype=torch.uint8), bits=2).tolist() == [0b100011]


def test_no_byte_is_wasted() -> None:
    assert [packed_size(n, bits=1) for n in (0, 1, 8, 9)] == [0, 1, 1, 2]
    assert [packed_size(n, bits=4) for n in (1, 2, 3)] == [1, 1, 2]
    assert packed_size(5, bits=8) == 5
