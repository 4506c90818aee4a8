import json
import math

import pytest
import torch

from gatelm.analysis.measure import analyze_batches
from gatelm.analysis.metrics.registry import describe
from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.analysis.probe.protocol import Observer
from gatelm.analysis.probe.recording import keep
from gatelm.analysis.statistics.details import Details
from gatelm.testing.statistics import naive_weights

FULL = {
    "leading_4_share", "value_share", "gated_share", "attention_output_inf_norm",
    "attention_output_kurtosis", "massive_count", "heads_effective_rank",
    "heads_effective_rank_centred", "branch_effective_rank", "branch_effective_rank_centred",
}  # fmt: skip


def display(ids):
    return [f"<{i}>" for i in ids]


def flat(tree):
    """Leaves of a tree by path."""
    if isinstance(tree, dict):
        return {f"{k}/{p}": v for k, t in tree.items() for p, v in flat(t).items()}
    if isinstance(tree, (list, tuple)):
        return {f"{k}/{p}": v for k, t in enumerate(tree) for p, v in flat(t).items()}
    return {"": tree}


def assert_same(actual, expected, rel=1e-4):
    actual, expected = flat(actual), flat(expected)
    assert actual.keys() == expected.keys()
    for path, value in expected.items():
        if isinstance(value, float) and math.isnan(value):
            assert math.isnan(actual[path]), path
        elif isinstance(value, float):
            assert actual[path] == pytest.approx(value, rel=rel, abs=1e-6), path
        else:
            assert actual[path] == value, path


def test_a_full_analysis_adds_to_the_standard_one(build, batch):
    model, rows = build("sdpa-element", "value"), batch(tokens=40)
    standard = analyze_batches(model, [rows]).metrics()
    found = analyze_batches(model, [rows], detail="full", decode=display)
    metrics = found.metrics()
    assert {name: metrics[name] for name in standard} == standard
    assert metrics.keys() - standard.keys() >= FULL
    for name, value in metrics.items():
        assert math.isfinite(value)
        assert describe(name).definition
    tree = json.loads(json.dumps(found.to_json(), allow_nan=False))
    share = torch.tensor(tree["first_token_share"])
    torch.testing.assert_close(torch.tensor(tree["detail"]["leading_share"]["1"]), share)
    norms = GatelmProbe(model).gate_weight_norms()
    for gate in tree["gates"]:
        place = gate["layer"], gate["site"]
        assert gate["weight_norms"] == pytest.approx(norms[place].tolist())


def test_what_passes_the_gate_is_read_from_the_model(build, batch):
    """Against whole matrices of kept tensors: the gate at sdpa, not the one at v."""
    model, rows = build("sdpa-element", "value"), batch(tokens=40)
    taps = ("q_rot_gated", "k_rot_gated", "v_gated", "sdpa_gate", "sdpa_gated", "out")
    with keep(model, taps) as kept:
        model(rows.tokens)
    detail = analyze_batches(model, [rows], detail="full").to_json()["detail"]
    from gatelm.nn.attention.masks import AttentionMask

    for layer in (0, 1):
        q, k, v, gate = (kept[tap, layer] for tap in taps[:4])
        mask, scale = AttentionMask(40, 40), model.layers[layer].attn.scale
        weights = naive_weights(q, k, mask, scale=scale)[1]
        values = v.repeat_interleave(2, dim=2)
        sizes = (values[:, None] * gate[:, :, None]).norm(dim=-1).permute(0, 3, 1, 2)
        carried = (weights * sizes)[:, :, 1:]
        expected = carried[..., 0].sum(dim=(0, 2)) / carried.sum(dim=(0, 2, 3))
        assert detail["gated_share"][layer] == pytest.approx(expected.tolist(), rel=1e-4)
    ranks = {(r["layer"], r["of"]): r for r in detail["ranks"]}
    assert set(ranks) == {
        (layer, of) for layer in (0, 1) for of in ("heads", "heads_before_gate", "branch")
    }
    heads = kept["sdpa_gated", 1].flatten(0, 1).flatten(1).double()
    shares = torch.linalg.svdvals(heads)
    shares = shares / shares.sum()
    expected = math.exp(float(torch.special.entr(shares).sum()))
    assert ranks[1, "heads"]["effective_rank"] == pytest.approx(expected, rel=1e-5)
    largest = float(kept["out", 1].abs().flatten(1).amax(dim=1).mean())
    assert detail["outputs"][1]["max_abs"] == pytest.approx(largest)


@pytest.mark.parametrize(
    ("gate", "passes"),
    [
        ("sdpa-head", True),
        ({"sharing": "shared"}, True),
        ({"operation": "add", "activation": "identity"}, False),
        ("value", False),
        ({"kind": "norm", "site": "sdpa"}, False),
    ],
)
def test_only_a_gate_that_multiplies_after_attention_has_a_gated_share(build, batch, gate, passes):
    metrics = analyze_batches(build(gate), [batch(tokens=20)], detail="full").metrics()
    assert ("gated_share" in metrics) is passes


def test_a_padded_copy_and_smaller_batches_give_the_same(build, batch, padded):
    model, rows = build("sdpa-element"), batch(rows=4, tokens=40)

    def detail(*batches):
        tree = analyze_batches(model, list(batches), detail="full").to_json()["detail"]
        del tree["distance"]["edges"], tree["sinks"]["rate_by_position"]
        return tree

    whole = detail(rows)
    parts = [type(rows)(rows.tokens[c], rows.targets[c]) for c in (slice(0, 1), slice(1, 4))]
    assert_same(detail(*parts), whole)
    edges = slice(0, 7)
    shown = detail(padded(rows, 5, 3))
    for key in ("mean", "on_first_token", "uniform"):
        shown["distance"][key] = [layer[edges] for layer in shown["distance"][key]]
    assert_same(shown, whole, rel=1e-3)


def test_only_the_named_layers_are_measured(build, batch):
    tree = analyze_batches(
        build("sdpa-head"), [batch(tokens=20)], detail="full", layers=[1]
    ).to_json()
    assert tree["attention_layers"] == tree["detail"]["layers"] == [1]
    assert [gate["layer"] for gate in tree["gates"]] == [1]
    assert [entry["layer"] for entry in tree["detail"]["outputs"]] == [1]
    assert {entry["layer"] for entry in tree["detail"]["ranks"]} == {1}
    assert len(tree["residual"]["max_abs"]) == 3


def test_sinks_name_their_tokens(build, batch):
    model, rows = build(), batch(tokens=48)
    with torch.no_grad():
        for block in model.layers:
            block.attn.qkv.q.weight.zero_()
    rows.tokens[:, 0] = 9
    sinks = analyze_batches(model, [rows], detail="full", decode=display).to_json()["detail"][
        "sinks"
    ]
    assert sinks["total"] == 0
    assert sinks["rate_by_position"][0] == 0.0


class WeightsOnly:
    """A probe that can only show whole matrices, as for models whose q and k cannot be read."""

    def __init__(self, probe):
        self._probe = probe

    def __getattr__(self, name):
        return getattr(self._probe, name)

    def observe(self, tokens, documents=None, observer=None):
        class Shown(Observer):
            def attention(self, call):
                weights = naive_weights(call.q, call.k, call.mask, scale=call.scale)[1]
                observer.weights(call.layer, weights, call.mask)

            def __getattribute__(self, name):
                if name in ("residual", "gate", "heads", "branch"):
                    return getattr(observer, name)
                return super().__getattribute__(name)

        return self._probe.observe(tokens, documents, None if observer is None else Shown())


@pytest.mark.parametrize("documents", [None, [[0] * 20 + [1] * 25, [-1] * 5 + [0] * 40]])
def test_weights_alone_give_the_same_shares(build, batch, documents):
    model = build("sdpa-head")
    ids = None if documents is None else torch.tensor(documents)
    rows = batch(rows=2, tokens=45, documents=ids)
    expected = analyze_batches(model, [rows], detail="full")
    found = analyze_batches(WeightsOnly(GatelmProbe(model)), [rows], detail="full")
    unknown = {"max_logit", "value_norm_ratio", "key_norm_ratio", "value_share", "gated_share"}
    metrics = expected.metrics()
    assert found.metrics().keys() == metrics.keys() - unknown
    for name, value in found.metrics().items():
        assert value == pytest.approx(metrics[name], rel=1e-4, abs=1e-6), name
    tree, whole = found.to_json(), expected.to_json()
    assert tree["max_logit"] == [[None] * 4] * 2
    for key in ("leading_share", "distance", "sinks"):
        assert_same(tree["detail"][key], whole["detail"][key])
    assert tree["attention_maps"].keys() == {"tokens", "maps"}


def test_a_wide_model_has_ranks_of_some_layers():
    wide = Details(0.3, num_layers=30)
    assert [layer for layer in range(30) if wide._has_rank(layer, 576)] == list(range(30))
    chosen = [layer for layer in range(30) if wide._has_rank(layer, 4096)]
    assert 2 <= len(chosen) <= 8
    assert chosen[0] == 0
    assert chosen[-1] == 29
