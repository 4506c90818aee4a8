import math

import pytest
import torch
from torch.nn import functional as F

from gatelm.analysis.metrics.registry import describe
from gatelm.config import ConfigError
from gatelm.config.load import merge
from gatelm.data.source import build_source
from gatelm.longcontext.scaling import scaled
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder
from gatelm.train import longer as module
from gatelm.train.config import RunConfig
from gatelm.train.longer import longer_metrics
from gatelm.train.longer_config import longer_data
from gatelm.train.step import StepOutcome, train_step
from gatelm.train.trainer import train

RECALL = {
    "kind": "associative_recall",
    "num_pairs": 3,
    "num_keys": 12,
    "num_values": 4,
    "num_tokens": None,
    "seq_len": 13,
}


def with_longer(tiny, **longer):
    return tiny({"longer": {"methods": ["none", "yarn"], "factors": [2], "sequences": 4, **longer}})


def model_of(cfg, source):
    model = Decoder(cfg.model_for(source.vocab_size))
    init_weights(model, 0)
    return model


def test_losses_within_and_beyond_are_those_of_the_scaled_model(tiny):
    cfg = with_longer(tiny)
    source = build_source(cfg.data, cfg.seed)
    model = model_of(cfg, source)
    found = longer_metrics(cfg, model)
    rows = list(build_source(longer_data(cfg.data, 2), cfg.seed).validation(2, 4))
    for method in ("none", "yarn"):
        other = Decoder(scaled(model.cfg, method, 2, 16))
        other.load_state_dict(model.state_dict())
        with torch.no_grad():
            losses = torch.cat(
                [
                    F.cross_entropy(
                        other(batch.tokens).transpose(1, 2), batch.targets, reduction="none"
                    )
                    for batch in rows
                ]
            )
        assert losses.shape == (4, 32)
        within, beyond = float(losses[:, :16].mean()), float(losses[:, 16:].mean())
        assert found[f"val_loss_within_at_2x_{method}"] == pytest.approx(within, rel=1e-5)
        assert found[f"val_loss_beyond_at_2x_{method}"] == pytest.approx(beyond, rel=1e-5)
        start = found["val_loss_within_at_2x_none"]
        assert found[f"val_loss_rise_at_2x_{method}"] == pytest.approx(beyond - start, abs=1e-5)
        assert found[f"val_loss_cost_at_2x_{method}"] == pytest.approx(within - start, abs=1e-5)
    assert found["scaling_gain_at_2x_yarn"] == pytest.approx(
        found["val_loss_beyond_at_2x_none"] - found["val_loss_beyond_at_2x_yarn"]
    )
    assert "scaling_gain_at_2x_none" not in found
    assert all(math.isfinite(value) for value in found.values())


def test_more_training_begins_from_the_trained_weights_and_leaves_them(tiny):
    cfg = with_longer(tiny, train_steps=3, train_methods=["none"], train_factor=2)
    source = build_source(cfg.data, cfg.seed)
    model = model_of(cfg, source)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    found = longer_metrics(cfg, model)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert found["val_loss_at_2x_none_trained"] != found["val_loss_at_2x_none"]
    assert "val_loss_at_2x_yarn_trained" not in found
    hardly = with_longer(
        tiny, train_steps=1, train_methods=["none"], train_factor=2, train_lr_ratio=1e-6
    )
    again = longer_metrics(hardly, model)
    assert again["val_loss_at_2x_none_trained"] == pytest.approx(
        again["val_loss_at_2x_none"], abs=1e-4
    )


def trained_steps(monkeypatch, cfg):
    """Each step that `longer` takes: its config, rows, rate and outcome."""
    steps, source = [], build_source(cfg.data, cfg.seed)

    def watched(state, batch, **options):
        outcome = train_step(state, batch, **options)
        steps.append((options["cfg"], len(batch), options["lr"], outcome))
        return outcome

    monkeypatch.setattr(module, "train_step", watched)
    metrics = longer_metrics(cfg, model_of(cfg, source))
    return steps, metrics


def test_more_training_has_the_losses_of_routers_and_the_microbatches_of_training(
    tiny, monkeypatch
):
    experts = {"kind": "moe", "num_experts": 4, "top_k": 2, "ffn_dim": 8}
    over = {
        "model": {"layer": {"ffn": experts}},
        "train": {"batch_size": 8, "micro_batch_size": 4, "router": {"balance": 1.0, "z": 1.0}},
        "optim": {"grad_clip": None},
        "longer": {
            "methods": ["none"],
            "factors": [2],
            "sequences": 4,
            "train_steps": 2,
            "train_methods": ["none"],
            "train_factor": 2,
        },
    }
    steps, metrics = trained_steps(monkeypatch, tiny(over))
    assert [(cfg.micro_batch_size, rows) for cfg, rows, _, _ in steps] == [(2, 4)] * 2
    assert all(rate == pytest.approx(3e-4) for _, _, rate, _ in steps)
    for _, _, _, outcome in steps:
        assert outcome.routing["balance_loss"] >= 1
        assert outcome.routing["router_z_loss"] > 0
    plain = merge(over, {"train": {"router": {"balance": 0.0, "z": 0.0}}})
    without, other = trained_steps(monkeypatch, tiny(plain))
    assert steps[0][3].grad_norm > without[0][3].grad_norm
    name = "val_loss_at_2x_none_trained"
    assert metrics[name] != other[name]
    whole = merge(over, {"train": {"micro_batch_size": None}})
    uncut, _ = trained_steps(monkeypatch, tiny(whole))
    assert uncut[0][0].micro_batch_size is None
    for (*_, cut), (*_, once) in zip(steps, uncut, strict=True):
        assert (cut.loss, cut.grad_norm) == pytest.approx((once.loss, once.grad_norm), rel=1e-5)


def test_more_training_that_diverges_is_no_result(tiny, monkeypatch, caplog):
    cfg = with_longer(tiny, train_steps=3, train_methods=["none"], train_factor=2)
    broken = StepOutcome("diverged", math.nan, math.nan, 0, "loss nan")
    monkeypatch.setattr(module, "train_step", lambda *args, **options: broken)
    found = longer_metrics(cfg, model_of(cfg, build_source(cfg.data, cfg.seed)))
    assert "val_loss_at_2x_none" in found
    assert not [name for name in found if name.endswith("_trained")]
    assert "more training on rows of 32 tokens diverged: loss nan" in caplog.text


def test_recall_has_more_pairs_in_longer_rows(tiny):
    data = {name: value for name, value in RECALL.items() if name != "num_tokens"}
    tree = tiny().tree()
    tree["data"] = data
    tree["longer"] = {"methods": ["none"], "factors": [2, 4], "sequences": 4}
    cfg = RunConfig.parse(tree)
    longer = longer_data(cfg.data, 4)
    assert (longer.seq_len, longer.num_pairs) == (52, 12)
    found = longer_metrics(cfg, model_of(cfg, build_source(cfg.data, 0)))
    assert 0 <= found["accuracy_recall_at_4x_none"] <= 1
    with pytest.raises(ConfigError, match=r"longer\.factors: 8 times.*num_pairs 24 is more than"):
        RunConfig.parse({**tree, "longer": {"methods": ["none"], "factors": [8]}})


def test_the_run_reports_them_and_every_name_has_a_definition(tiny, tmp_path):
    result = train(with_longer(tiny), tmp_path / "run")
    names = [name for name in result.metrics if "_at_2x_" in name]
    assert "sink_rate_at_2x_yarn" in names
    for name in names:
        assert "2 times the training length" in describe(name).definition
    assert "scaled by yarn" in describe("val_loss_rise_at_2x_yarn").definition
    assert "more training" in describe("val_loss_at_4x_none_trained").definition
    with pytest.raises(ValueError, match="unknown metric 'wisdom_at_2x_yarn'; on longer rows"):
        describe("wisdom_at_2x_yarn")


def test_runs_without_it_keep_their_hash(tiny):
    assert "longer" in tiny().tree()
    assert tiny().content_hash() == tiny({"longer": None}).content_hash()
    assert tiny().content_hash() != with_longer(tiny).content_hash()


@pytest.mark.parametrize(
    ("longer", "sentence"),
    [
        ({"methods": ["yarm"]}, "unknown method 'yarm'; did you mean 'yarn'"),
        ({"methods": ["yarn"]}, "none is missing"),
        ({"factors": [1]}, "2 or more times"),
        ({"factors": [2, 2]}, "each once"),
        ({"train_steps": 2, "train_factor": 8}, "longer.train_factor: 8 is not among"),
    ],
)
def test_mistakes_are_one_sentence(tiny, longer, sentence):
    with pytest.raises(ConfigError, match=sentence):
        with_longer(tiny, **longer)
