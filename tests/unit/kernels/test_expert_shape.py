"""Do the parameter counts equal the paper's (appendix C, Table 2), and does the map cover theta without gaps?"""

import pytest

from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma.model import count_parameters

SHAPES = (
    ExpertShape(width=32),
    ExpertShape(width=5, depth=3, embed_width=3),
    ExpertShape(width=2, depth=1, embed_width=2),
    ExpertShape(width=509),
)


def test_the_papers_body_of_width_32() -> None:
    shape = ExpertShape(width=32)
    assert shape.num_parameters == 32_928  # 32 d^2 + 5 d
    assert not shape.has_projections
    assert shape.num_decoder_parameters == 8_192
    assert shape.operations_per_byte == 81_920  # 2 (32 d^2 + 256 x 32)


def test_the_papers_bodies_of_table_2() -> None:
    assert ExpertShape(width=509).num_parameters == 8_325_713
    assert ExpertShape(width=361).num_parameters == 4_195_181
    assert ExpertShape(width=181).num_parameters == 1_060_841


@pytest.mark.parametrize(
    ("width", "num_experts", "decoders", "expected"),
    [
        (509, 1, 1, 8_333_905),  # 8.33M
        (361, 2, 2, 8_406_746),  # 8.41M
        (181, 8, 8, 8_552_264),  # 8.55M
        (32, 256, 1, 8_437_760),  # 8.44M, one shared head
    ],
)
def test_the_papers_ensembles_of_table_2(width: int, num_experts: int, decoders: int, expected: int) -> None:
    assert count_parameters(ExpertShape(width=width), num_experts=num_experts, decoders=decoders) == expected


@pytest.mark.parametrize("shape", SHAPES)
def test_counts_follow_the_closed_form(shape: ExpertShape) -> None:
    d, depth, embed = shape.width, shape.depth, shape.embed_width
    projections = 2 * d * embed if d != embed else 0
    assert shape.num_parameters == 16 * depth * d * d + (2 * depth + 1) * d + projections
    assert shape.operations_per_byte == 2 * (16 * depth * d * d + projections + 256 * embed)


@pytest.mark.parametrize("shape", SHAPES)
def test_slots_cover_theta_once_and_in_order(shape: ExpertShape) -> None:
    position = 0
    for slot in shape.slots:
        assert slot.start == position
        position = slot.stop
    assert position == shape.num_parameters
    assert len({slot.name for slot in shape.slots}) == len(shape.slots)


@pytest.mark.parametrize("shape", SHAPES)
def test_gains_are_the_norms_and_nothing_else(shape: ExpertShape) -> None:
    gains = [slot for slot in shape.slots if slot.is_gain]
    assert len(gains) == 2 * shape.depth + 1
    assert all("norm" in slot.name and slot.size == shape.width for slot in gains)
    assert not any("norm" in slot.name for slot in shape.slots if not slot.is_gain)
