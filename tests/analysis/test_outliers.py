import pytest
import torch

from gatelm.analysis.outliers import Outliers, clamped, layer_names, set_to_mean
from gatelm.analysis.probe.layout import Layout


def stream(rows=2, tokens=12, width=8):
    """|h| of about 0.05, with spikes in channels 3 and 5, and one that is large but not massive."""
    h = torch.randn(rows, tokens, width, generator=torch.Generator().manual_seed(0)) * 0.05
    h[0, 0, 3], h[1, 0, 3], h[0, 4, 3], h[1, 2, 5] = 400.0, 600.0, -300.0, 150.0
    h[0, 7, 6] = 99.0
    return h


def test_channels_and_means_of_massive_activations():
    h, outliers = stream(), Outliers()
    for row in h:
        outliers.add(row[None], Layout.of(None, 1, 12))
    found = outliers.summary()
    assert outliers.channels == found.channels == (3, 5)
    assert found.largest_other == pytest.approx(99.0)
    assert found.positive_mean.tolist() == pytest.approx([500.0, 150.0])
    assert found.negative_mean.tolist() == pytest.approx([-300.0, 0.0])


def test_large_is_not_massive_beside_a_large_median():
    outliers = Outliers()
    outliers.add(stream() + 1.0, Layout.of(None, 2, 12))
    assert outliers.channels == ()


def test_padding_counts_for_nothing():
    h = torch.nn.functional.pad(stream(), (0, 0, 4, 3), value=1e6)
    documents = torch.nn.functional.pad(torch.zeros(2, 12, dtype=torch.long), (4, 3), value=-1)
    layout, outliers = Layout.of(documents, 2, 19), Outliers()
    outliers.add(h, layout)
    assert outliers.channels == (3, 5)
    assert outliers.summary().largest_other == pytest.approx(99.0)
    changed = set_to_mean({0: outliers.summary()}, layout)(0, h)
    assert torch.equal(changed[:, :4], h[:, :4])
    assert changed[0, 4, 3] == pytest.approx(500.0)


def test_changes_touch_massive_channels_of_their_layer_alone():
    h, outliers = stream(), Outliers()
    layout = Layout.of(None, 2, 12)
    outliers.add(h, layout)
    found = {4: outliers.summary()}
    assert torch.equal(clamped(found)(3, h), h)
    assert torch.equal(set_to_mean(found, layout)(3, h), h)

    kept = clamped(found)(4, h)
    assert kept[..., [3, 5]].abs().max() == 99.0
    assert kept[0, 4, 3] == -99.0
    others = [0, 1, 2, 4, 6, 7]
    assert torch.equal(kept[..., others], h[..., others])

    mean = set_to_mean(found, layout)(4, h)
    assert mean[:, 0, 3].tolist() == [500.0, 500.0]
    assert mean[0, 4, 3] == -300.0
    small = h.abs() < 100
    assert torch.equal(mean[small], h[small])


@pytest.mark.parametrize(
    ("layers", "name"),
    [([3], "layer 3"), ([5, 3], "layers 3, 5"), ([1, 4, 5, 6, 8, 9], "layers 1, 4 to 6, 8, 9")],
)
def test_layer_names(layers, name):
    assert layer_names(layers) == name
