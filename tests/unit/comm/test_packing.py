"""Do tensors of any types come out of one message as they went in, without a byte between them?"""

import pytest
import torch

from thinwire.comm.packing import TensorSpec, pack, spec_of, unpack

MIXED = (
    torch.tensor([True, False, True]),
    torch.arange(5, dtype=torch.bfloat16),
    torch.randn(2, 3, dtype=torch.float64),
    torch.tensor(7, dtype=torch.int64),
    torch.empty(0, 4),
    torch.randn(4, 3).T,
)


def test_mixed_types_come_back() -> None:
    specs = [spec_of(tensor) for tensor in MIXED]
    buffer = pack(MIXED)
    assert buffer.numel() == 3 + 10 + 48 + 8 + 0 + 48 == sum(spec.num_bytes for spec in specs)
    for sent, received in zip(MIXED, unpack(buffer, specs), strict=True):
        assert received.dtype == sent.dtype
        assert torch.equal(received, sent)


def test_a_header_lies_in_front() -> None:
    header = torch.arange(16, dtype=torch.uint8)
    buffer = pack(MIXED, header=header)
    assert torch.equal(buffer[:16], header)
    unpacked = unpack(buffer, [spec_of(tensor) for tensor in MIXED], start=16)
    assert all(torch.equal(sent, received) for sent, received in zip(MIXED, unpacked, strict=True))


@pytest.mark.parametrize("count", [1, 2])
def test_a_message_is_a_copy(count: int) -> None:
    tensor = torch.zeros(3)
    buffer = pack([tensor] * count)
    tensor += 1
    assert buffer.sum() == 0


def test_gradients_do_not_follow() -> None:
    assert not pack([torch.ones(2, requires_grad=True)]).requires_grad


def test_nothing_is_an_empty_message() -> None:
    assert pack([]).numel() == 0
    assert unpack(pack([]), [TensorSpec((0, 3), torch.float32)])[0].shape == (0, 3)
