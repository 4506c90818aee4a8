import pytest
import torch

from gatelm.config import ConfigError
from gatelm.hf.convert.layouts import PACKED_LAYOUTS, PackedShape, pack, row_order, unpack

GQA = PackedShape(num_heads=4, num_kv_heads=2, head_dim=3, gate_width=3)
GQA_HEAD = PackedShape(num_heads=4, num_kv_heads=2, head_dim=3, gate_width=1)


def ids(shape):
    """Query and gate matrices whose every entry is 100 head + channel, gates 1000 more."""
    query = [100 * h + c for h in range(shape.num_heads) for c in range(shape.head_dim)]
    gate = [1000 + 100 * h + c for h in range(shape.num_heads) for c in range(shape.gate_width)]
    columns = torch.ones(5)
    return torch.outer(torch.tensor(query).float(), columns), torch.outer(
        torch.tensor(gate).float(), columns
    )


@pytest.mark.parametrize(
    ("layout", "shape", "expected"),
    [
        (
            "per_query_head",
            GQA,
            [
                *(0, 1, 2, 1000, 1001, 1002),
                *(100, 101, 102, 1100, 1101, 1102),
                *(200, 201, 202, 1200, 1201, 1202),
                *(300, 301, 302, 1300, 1301, 1302),
            ],
        ),
        (
            "per_kv_group",
            GQA,
            [
                *(0, 1, 2, 100, 101, 102, 1000, 1001, 1002, 1100, 1101, 1102),
                *(200, 201, 202, 300, 301, 302, 1200, 1201, 1202, 1300, 1301, 1302),
            ],
        ),
        (
            "per_kv_group",
            GQA_HEAD,
            [*(0, 1, 2, 100, 101, 102, 1000, 1100), *(200, 201, 202, 300, 301, 302, 1200, 1300)],
        ),
    ],
)
def test_which_row_goes_where(layout, shape, expected):
    packed = pack(layout, shape, *ids(shape))
    assert packed[:, 0].tolist() == expected
    assert (packed == packed[:, :1]).all()


@pytest.mark.parametrize("layout", PACKED_LAYOUTS)
@pytest.mark.parametrize("shape", [GQA, GQA_HEAD, PackedShape(6, 3, 4, 4), PackedShape(8, 1, 2, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_there_and_back_is_bit_equal(layout, shape, dtype):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(shape.query_rows, 7, generator=generator).to(dtype)
    gate = torch.randn(shape.gate_rows, 7, generator=generator).to(dtype)
    packed = pack(layout, shape, query, gate)
    back = unpack(layout, shape, packed)
    assert torch.equal(back[0], query)
    assert torch.equal(back[1], gate)
    assert packed.dtype == dtype
    again = torch.randn(packed.shape, generator=generator).to(dtype)
    assert torch.equal(pack(layout, shape, *unpack(layout, shape, again)), again)


def test_biases_are_rows_without_columns():
    query, gate = torch.arange(12.0), torch.arange(100.0, 112.0)
    back = unpack("per_kv_group", GQA, pack("per_kv_group", GQA, query, gate))
    assert torch.equal(back[0], query)
    assert torch.equal(back[1], gate)


def test_the_layouts_have_one_shape_and_differ_under_grouped_queries():
    a, b = (row_order(layout, GQA) for layout in PACKED_LAYOUTS)
    assert a.shape == b.shape
    assert not torch.equal(a, b)
    wrong = unpack("per_query_head", GQA, pack("per_kv_group", GQA, *ids(GQA)))
    assert (wrong[0] != ids(GQA)[0]).any(dim=1).float().mean() == 0.5
    alone = PackedShape(num_heads=4, num_kv_heads=4, head_dim=3, gate_width=3)
    assert torch.equal(*(row_order(layout, alone) for layout in PACKED_LAYOUTS))


def test_an_unknown_layout_is_named():
    with pytest.raises(ConfigError, match=r"'per_head': known packed layouts are per_query_head"):
        row_order("per_head", GQA)
