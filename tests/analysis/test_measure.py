import json
import math
from collections import Counter

import pytest
import torch
from torch.nn import functional as F

from gatelm.analysis.measure import analyze_batches, health
from gatelm.analysis.metrics.registry import METRICS, describe, split_mark
from gatelm.analysis.probe.recording import keep
from gatelm.nn.attention.module import use_backend

GATES = ("sdpa-element", "value")


def assert_same(actual, expected, skip=(), rel=1e-4):
    assert actual.keys() == expected.keys()
    for name in actual.keys() - set(skip):
        assert actual[name] == pytest.approx(expected[name], rel=rel, abs=1e-6), name


def trigger(rows, tokens):
    return torch.rand(rows, tokens, generator=torch.Generator().manual_seed(3)) < 0.4


@pytest.fixture
def rows(batch):
    return batch(rows=4, tokens=24, marks={"trigger": trigger(4, 24)})


def test_every_number_has_a_definition(build, rows):
    found = analyze_batches(build(*GATES), [rows], bytes_per_token=3.0).metrics()
    for name, value in found.items():
        assert math.isfinite(value)
        assert describe(name).definition
    in_health = {name for name, metric in METRICS.items() if metric.in_health}
    assert {split_mark(name)[0] for name in found} >= in_health
    for stem in ("accuracy", "val_loss", "first_token_share", "gate_mean"):
        assert f"{stem}_trigger" in found


def test_loss_and_accuracy_against_torch(build, rows):
    model = build(*GATES)
    found = analyze_batches(model, [rows], bytes_per_token=3.0).metrics()
    logits = model(rows.tokens).detach()
    loss = float(F.cross_entropy(logits.flatten(0, 1), rows.targets.flatten()))
    hits = (logits.argmax(-1) == rows.targets)[rows.marks["trigger"]]
    assert found["val_loss"] == pytest.approx(loss, rel=1e-6)
    assert found["val_ppl"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert found["val_bits_per_byte"] == pytest.approx(loss / math.log(2) / 3, rel=1e-6)
    assert found["accuracy_trigger"] == pytest.approx(float(hits.float().mean()))


def test_the_backend_does_not_matter(build, rows):
    model = build(*GATES, qk_norm={})
    use_backend(model, "eager")
    expected = analyze_batches(model, [rows]).metrics()
    use_backend(model, "sdpa")
    assert_same(analyze_batches(model, [rows]).metrics(), expected)


@pytest.mark.parametrize(("left", "right"), [(5, 0), (0, 9), (3, 2)])
def test_a_padded_copy_gives_the_same_numbers(build, rows, padded, left, right):
    model = build(*GATES)
    expected = analyze_batches(model, [rows]).metrics()
    assert_same(analyze_batches(model, [padded(rows, left, right)]).metrics(), expected)


def test_packed_documents_are_separate_documents(build, batch):
    """Numbers per row of the batch differ: a row is then another thing."""
    model = build(*GATES)
    rows = batch(rows=4, tokens=20, marks={"trigger": trigger(4, 20)})
    ids = torch.arange(2).repeat_interleave(20).expand(2, 40).clone()
    packed = type(rows)(
        rows.tokens.view(2, 40),
        rows.targets.view(2, 40),
        ids,
        {"trigger": rows.marks["trigger"].view(2, 40)},
    )
    per_row = ("max_activation", "massive_activation_mean", "activation_ratio")
    assert_same(
        analyze_batches(model, [packed]).metrics(),
        analyze_batches(model, [rows]).metrics(),
        skip=(*per_row, "activation_kurtosis"),
    )


def test_activations_are_read_at_the_embedding_and_after_every_layer(build, rows):
    model = build(*GATES)
    with torch.no_grad():
        model.embedding.weight.mul_(50.0)
    found = analyze_batches(model, [rows])
    with keep(model, ["resid_in", "resid_out"]) as kept:
        model(rows.tokens)
    places = [kept["resid_in", 0], kept["resid_out", 0], kept["resid_out", 1]]
    size = [place.abs().flatten(1) for place in places]
    tree = found.to_json()["residual"]
    largest = [float(place.amax(1).mean()) for place in size]
    assert tree["max_abs"] == pytest.approx(largest)
    assert tree["median_abs"] == pytest.approx([float(p.median(1).values.mean()) for p in size])
    norms = [place.norm(dim=-1) for place in places]
    ratios = [float(n[:, 0].mean() / n[:, 1:].mean()) for n in norms]
    assert tree["norm_ratio"] == pytest.approx(ratios)
    flat = found.metrics()
    assert flat["max_activation"] == pytest.approx(max(largest[1:]))
    assert flat["massive_activation_mean"] == pytest.approx(sum(largest[1:]) / 2)
    assert flat["norm_ratio"] == pytest.approx(max(ratios[1:]))


def test_batches_add_up(build, rows):
    model = build(*GATES)
    parts = [
        type(rows)(rows.tokens[c], rows.targets[c], None, {"trigger": rows.marks["trigger"][c]})
        for c in (slice(0, 1), slice(1, 4))
    ]
    assert_same(
        analyze_batches(model, iter(parts)).metrics(), analyze_batches(model, [rows]).metrics()
    )


def test_nothing_about_the_model_changes(build, rows):
    model = build(*GATES, dropout=0.5)
    model.layers[1].eval()
    model(rows.tokens).sum().backward()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    first = analyze_batches(model, [rows]).metrics()
    assert health(model, [rows]) == {name: first[name] for name in health(model, [rows])}
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    assert all(torch.equal(grads[name], p.grad) for name, p in model.named_parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert all(not p.requires_grad or p.grad is not None for p in model.parameters())


def test_zero_queries_are_uniform_and_one_key_norm_is_the_others(build, batch):
    model = build()
    with torch.no_grad():
        for block in model.layers:
            block.attn.qkv.q.weight.zero_()
    found = analyze_batches(model, [batch(tokens=64)]).metrics()
    expected = (sum(1 / i for i in range(1, 65)) - 1) / 63
    assert found["first_token_share"] == pytest.approx(expected)
    assert found["first_token_share_uniform"] == pytest.approx(expected)
    assert found["attention_entropy_normalized"] == pytest.approx(1.0)
    assert found["sink_rate"] == found["max_logit"] == 0.0


@pytest.mark.parametrize("rope", [{}, None])
def test_a_repeated_token_has_no_sink(build, batch, rope):
    """All states are equal, so with RoPE scores depend on the distance alone and without it on
    nothing: no first token stands out (arXiv 2410.10781, propositions 1 to 4)."""
    rows = batch(tokens=64)
    same = type(rows)(torch.full_like(rows.tokens, 5), rows.targets)
    found = analyze_batches(build(rope=rope, scale=2.0), [same]).metrics()
    assert found["sink_rate"] == 0.0
    for name in ("norm_ratio", "value_norm_ratio", "key_norm_ratio"):
        assert found[name] == pytest.approx(1.0, rel=1e-5)
    uniform = found["first_token_share_uniform"]
    assert found["first_token_share"] == pytest.approx(uniform, rel=0.5 if rope == {} else 1e-5)


def test_json_has_the_agreed_shape(build, batch):
    rows = batch(rows=4, tokens=64, marks={"trigger": trigger(4, 64)})
    rows.tokens[:, 0] = 1
    model = build(*GATES)
    found = analyze_batches(model, [rows], decode=lambda ids: [f"<{i}>" for i in ids])
    tree = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (tree["seq_len"], tree["num_sequences"], tree["bos"]) == (64, 4, True)
    assert (tree["num_layers"], tree["num_heads"]) == (2, 4)
    for key in ("first_token_share", "entropy", "max_logit"):
        assert [len(heads) for heads in tree[key]] == [4, 4]
    share = torch.tensor(tree["first_token_share"])
    assert found.metrics()["first_token_share"] == pytest.approx(float(share.mean()))
    assert tree["first_token_share_by_mark"].keys() == {"trigger"}
    assert tree["sink_rate"].keys() == {"0.2", "0.3", "0.5", "0.8"}
    for key in ("max_abs", "median_abs", "norm_ratio"):
        assert len(tree["residual"][key]) == 3
    places = Counter((gate["layer"], gate["site"]) for gate in tree["gates"])
    assert places == Counter((layer, site) for layer in (0, 1) for site in ("v", "sdpa"))
    gate = tree["gates"][0]
    assert len(gate["histogram"]["edges"]) == len(gate["histogram"]["counts"]) + 1
    maps = tree["attention_maps"]
    assert maps["tokens"] == [f"<{i}>" for i in rows.tokens[0, :48].tolist()]
    assert len(maps["maps"]) == 8
    weights = torch.tensor(maps["maps"][3]["weights"])
    torch.testing.assert_close(weights.sum(-1), torch.ones(48), atol=5e-3, rtol=0)


def test_without_gates_marks_or_maps(build, batch):
    rows = batch(tokens=8)
    found = analyze_batches(build(), [rows], map_tokens=0)
    assert not [name for name in found.metrics() if name.startswith(("gate", "sink"))]
    tree = found.to_json()
    assert tree["gates"] == []
    assert tree["sink_rate"]["0.3"] is None
    assert "attention_maps" not in tree
    assert tree["bos"] is False


def test_a_diverged_model_is_analyzed_without_an_error(build, rows):
    model = build(*GATES)
    with torch.no_grad():
        model.layers[0].attn.qkv.q.weight.fill_(float("nan"))
    found = analyze_batches(model, [rows])
    json.dumps(found.to_json(), allow_nan=False)
    assert "first_token_share" not in found.metrics()
    assert "val_loss" not in found.metrics()


def test_a_wrapped_model_is_unwrapped(build, rows):
    model = build(*GATES)
    wrapped = torch.nn.Module()
    wrapped.module = model
    assert health(wrapped, [rows]) == health(model, [rows])
    with pytest.raises(ValueError, match="not a gatelm decoder"):
        health(torch.nn.Linear(2, 2), [rows])


def test_no_batches_is_an_error(build):
    with pytest.raises(ValueError, match="held-out data is empty"):
        analyze_batches(build(), [])
