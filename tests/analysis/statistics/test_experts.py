import pytest
import torch

from gatelm.analysis.metrics.registry import METRICS
from gatelm.analysis.statistics.experts import expert_metrics, expert_tree, expert_use
from gatelm.data.batch import Batch
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig


def model_of(**ffn):
    layer = {"mixer": {"num_heads": 2}, "ffn": {"ffn_dim": 8, **ffn}}
    tree = {"vocab_size": 20, "hidden_dim": 16, "num_layers": 2, "layer": layer}
    model = Decoder(ModelConfig.parse(tree)).eval()
    init_weights(model, 0)
    return model


def batches(pad=0):
    tokens = torch.randint(20, (4, 12), generator=torch.Generator().manual_seed(0))
    documents = torch.zeros_like(tokens)
    if pad:
        documents[:, :pad] = -1
        tokens[:, :pad] = 7
    return [Batch(tokens[i : i + 2], tokens[i : i + 2], documents[i : i + 2]) for i in (0, 2)]


MOE = {"kind": "moe", "num_experts": 4, "top_k": 2}


def test_loads_are_shares_of_all_choices():
    use = expert_use(model_of(**MOE), batches())
    assert list(use) == [0, 1]
    for layer in use.values():
        assert layer.load.sum() == pytest.approx(1.0)
        assert layer.probability.sum() == pytest.approx(1.0)
        assert layer.load.max() <= 0.5
    metrics = expert_metrics(use)
    assert set(metrics) <= set(METRICS)
    assert 1.0 <= metrics["expert_load_max"] <= 2.0
    tree = expert_tree(use)
    assert tree["1"]["load"] == use[1].load.tolist()


def test_padding_counts_nowhere():
    model = model_of(**MOE)
    with torch.no_grad():
        tokens = batches(pad=3)[0].tokens
        hidden = {}
        model.layers[0].ffn.register_forward_pre_hook(lambda _m, args: hidden.update(x=args[0]))
        expert_use(model, batches(pad=3)[:1])
        x = hidden["x"][:, 3:].flatten(0, 1)
        chosen = model.layers[0].ffn.router(x).topk(2).indices
    expected = torch.bincount(chosen.flatten(), minlength=4) / chosen.numel()
    assert tokens.shape == (2, 12)
    torch.testing.assert_close(
        expert_use(model, batches(pad=3)[:1])[0].load, expected.double(), rtol=1e-6, atol=0
    )


def test_a_router_stuck_on_two_experts_shows():
    model = model_of(**MOE)
    with torch.no_grad():
        for layer in model.layers:
            layer.ffn.router.weight.zero_()
            layer.ffn_norm.weight.zero_()
    metrics = expert_metrics(expert_use(model, batches()))
    assert metrics["expert_load_max"] == pytest.approx(2.0)
    assert metrics["experts_rarely_used"] == pytest.approx(0.5)
    assert metrics["balance_loss"] == pytest.approx(1.0)


def test_a_dense_model_has_none():
    assert expert_use(model_of(), batches()) == {}
    assert expert_metrics({}) == {}
