import pytest
import torch

from gatelm.analysis.statistics.maps import attention_map, evenly, maps_entry
from gatelm.nn.attention.masks import AttentionMask
from gatelm.testing.statistics import naive_weights


@pytest.mark.parametrize("slopes", [None, (0.5, 0.25, 0.125, 0.0)])
@pytest.mark.parametrize("window_tokens", [None, 4])
def test_a_map_holds_the_weights(window_tokens, slopes):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(12, 4, 8, generator=generator)
    k = torch.randn(12, 2, 8, generator=generator)
    settings = {"scale": 0.5, "window_tokens": window_tokens, "alibi_slopes": slopes}
    found = attention_map(q, k, **settings)
    expected = naive_weights(q[None], k[None], AttentionMask(12, 12), **settings)[1]
    torch.testing.assert_close(found, expected[0])


@pytest.mark.parametrize(
    ("count", "most", "expected"),
    [(3, 5, [0, 1, 2]), (5, 5, [0, 1, 2, 3, 4]), (28, 4, [0, 9, 18, 27]), (6, 1, [5])],
)
def test_layers_are_spread_over_the_depth(count, most, expected):
    assert evenly(count, most) == expected


def test_all_heads_of_the_layers_that_fit():
    maps = {layer: torch.zeros(4, 3, 3) for layer in range(12)}
    entry = maps_entry(["a", "b", "c"], maps, max_maps=13)
    shown = [(m["layer"], m["head"]) for m in entry["maps"]]
    assert shown == [(layer, head) for layer in (0, 6, 11) for head in range(4)]
