import pytest
import torch

from gatelm.analysis import intervene
from gatelm.nn.gates.sites import SITES, gate_module
from helpers import decoder, random_ids

TREE = {
    "vocab_size": 19,
    "hidden_dim": 16,
    "num_layers": 2,
    "layer": {
        "mixer": {"num_heads": 4, "num_kv_heads": 2, "bias": "all"},
        "ffn": {"ffn_dim": 24},
    },
}
FOLDED = [name for name, site in SITES.items() if site.folds_into is not None]


def biased(tree):
    model = decoder(tree, scale=8.0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.linspace(-0.5, 0.5, len(parameter)))
    return model


@pytest.mark.parametrize("site", FOLDED)
def test_a_factor_at_a_site_is_a_factor_on_the_weights_behind_it(site):
    model, ids = biased(TREE), random_ids(19, 2, 9)
    with torch.no_grad(), intervene(model, {f"{site}_gated": lambda layer, tensor: 2.0 * tensor}):
        expected = model(ids)
    state = model.state_dict()
    for index, layer in enumerate(model.cfg.layers()):
        for name in layer.weights_behind(site):
            state[f"layers.{index}.{name}"] *= 2.0
    with torch.no_grad():
        torch.testing.assert_close(model(ids), expected)


@pytest.mark.parametrize("site", SITES)
def test_the_weights_behind_a_site_are_those_that_it_declares(site):
    cfg = decoder(TREE).cfg
    assert bool(cfg.layer.weights_behind(site)) == (SITES[site].folds_into is not None)
    assert SITES[site].before_softmax == (SITES[site].tensor in ("q", "k"))
    if SITES[site].before_softmax:
        assert not cfg.layer.weights_behind(site)


@pytest.mark.parametrize("site", SITES)
def test_a_gate_stands_in_the_module_of_its_site(site):
    gated = {**TREE, "layer": {**TREE["layer"], "gates": [{"site": site}]}}
    names = [n for n in decoder(gated).state_dict() if ".gates." in n]
    assert names
    assert all(n.split(".", 2)[2].startswith(f"{gate_module(site)}.") for n in names)
