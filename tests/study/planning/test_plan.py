"""Plans: the grid, hashes, folders, matching, and where mistakes are."""

from __future__ import annotations

import pytest

from gatelm.config import ConfigError
from gatelm.nn.count import count, flops_per_token
from gatelm.study.planning import plan as plan_module
from gatelm.study.planning.plan import plan, setting_label
from gatelm.study.planning.spec import StudyConfig, continued
from gatelm.study.planning.vocabulary import sized

GATED = {"model.layer.gates": ["sdpa-element"]}


def test_grid_of_axes_arms_and_seeds(make_plan):
    runs = make_plan(
        axes={"optim.weight_decay": [0.0, 0.1], "train.batch_size": [2, 4]}, seeds=[0, 5]
    ).runs
    assert len(runs) == 2 * 2 * 2 * 2
    assert len({r.folder for r in runs}) == 16
    assert len({r.config_hash for r in runs}) == 16
    run = next(r for r in runs if r.arm == "low" and r.seed == 5)
    assert (run.config.seed, run.config.optim.lr, run.config.optim.weight_decay) == (5, 0.001, 0.0)
    assert run.folder == (f"runs/main/low,weight_decay=0.0,batch_size=2/seed-5-{run.config_hash}")
    assert run.label == "main/low,weight_decay=0.0,batch_size=2/seed 5"


def test_hashes_do_not_depend_on_the_order_things_are_written_in(make_study):
    arms = {"none": {}, "gated": {**GATED, "optim.lr": 0.5}}
    other = {"gated": {"optim.lr": 0.5, **GATED}, "none": {}}
    first = {r.folder for r in plan(make_study(arms=arms, seeds=[0, 1])).runs}
    study = make_study(arms=other, seeds=[1, 0])
    tree = study.tree()
    base = tree["parts"]["main"]["base"]
    tree["parts"]["main"]["base"] = dict(reversed(base.items()))
    assert {r.folder for r in plan(StudyConfig.parse(tree)).runs} == first


def test_a_setting_that_changes_nothing_computed_keeps_the_hash(make_plan):
    plain, logged = make_plan(
        arms={"none": {}, "logged": {"train.log_every_steps": 1}}, seeds=[0]
    ).runs
    assert plain.config_hash == logged.config_hash


def test_equal_arms_have_the_same_hashes_and_their_own_folders(make_plan):
    runs = make_plan(arms={"a": {}, "b": {}}, baseline="a").runs
    assert len({r.config_hash for r in runs}) == 2
    assert len({r.folder for r in runs}) == 4


def test_cost_is_counted_from_the_config(make_plan):
    run = make_plan(arms={"none": {}, "gated": GATED}, seeds=[0]).runs[1]
    model = sized(run.config)
    assert model.vocab_size == 17
    assert run.parameters == count(model).total
    assert run.gate_parameters == count(model).gate == 16 * 16
    assert run.flops == 3 * 2 * 8 * flops_per_token(model, 8)
    assert run.config.model.vocab_size is None


def test_matched_arms_have_the_baseline_s_parameters(make_plan):
    runs = make_plan(
        arms={"none": {}, "gated": GATED, "own": {**GATED, "model.layer.ffn.ffn_dim": 40}},
        match={"multiple": 1},
        seeds=[0],
    ).runs
    none, gated, own = (r.config.model.layer.ffn.ffn_dim for r in runs)
    assert (none, own) == (32, 40)
    unmatched = make_plan(arms={"none": {}, "gated": GATED}, seeds=[0]).runs[1]
    model = sized(unmatched.config)
    totals = {
        width: count(model.replace(layer=model.layer.replace(ffn={"ffn_dim": width}))).total
        for width in range(1, 64)
    }
    assert gated == min(totals, key=lambda width: abs(totals[width] - runs[0].parameters))
    assert abs(runs[1].parameters - runs[0].parameters) <= 3 * 16 / 2
    assert runs[1].config_hash != unmatched.config_hash


def test_matching_flops(make_plan):
    runs = make_plan(
        arms={"none": {}, "gated": GATED}, match={"multiple": 2, "quantity": "flops"}, seeds=[0]
    ).runs
    assert runs[1].config.model.layer.ffn.ffn_dim < 32
    one_step = 3 * 2 * 8 * 3 * 2 * 3 * 16 * 2
    assert abs(runs[1].flops - runs[0].flops) <= one_step / 2


def test_equal_arms_are_not_rounded_by_matching(make_plan):
    runs = make_plan(arms={"none": {}, "same": {}}, match={"multiple": 7}, seeds=[0]).runs
    assert runs[0].config_hash == runs[1].config_hash


def test_labels():
    assert setting_label("a", {}) == "a"
    assert setting_label("a", {"optim.lr": 3e-3}) == "a,lr=0.003"
    assert setting_label("a", {"x.lr": 1, "y.lr": 2}) == "a,x.lr=1,y.lr=2"
    assert setting_label("a", {"g": ["sdpa/head", {"k": None}]}) == "a,g=sdpa-head-k-null"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"arms": {"none": {}, "bad": {"optim.lrr": 1}}},
            "part main, arm bad: optim: unknown key 'lrr'; did you mean 'lr'",
        ),
        (
            {"arms": {"none": {}, "bad": {"modell.layer": 1}}},
            "part main, arm bad: unknown key 'modell'; did you mean 'model'",
        ),
        (
            {"arms": {"none": {}, "bad": {"model.hidden_dim.x": 1}}},
            "part main, arm bad: model.hidden_dim.x: ",
        ),
        ({"axes": {"optim.lr": [0.1, "much"]}, "arms": {"none": {}}}, "arm none,lr=much: optim.lr"),
        ({"metrics": ["val_los"]}, "part main: metrics: unknown metric 'val_los'; did you mean"),
        (
            {"match": {"by": "model.layer.ffn.ffn_dmi"}},
            "part main: match.by: no setting 'model.layer.ffn.ffn_dmi'; did you mean",
        ),
        (
            {"arms": {"none": {}, "big": {"model.num_layers": 50}}, "match": {}},
            "part main, arm big: match.by model.layer.ffn.ffn_dim: already at width 8",
        ),
        (
            {"match": {"by": "train.eval_sequences"}, "arms": {"none": {}, "gated": GATED}},
            "does not change what the run costs|more than the baseline",
        ),
    ],
)
def test_mistakes_name_part_arm_and_path(make_plan, fields, message):
    with pytest.raises(ConfigError, match=message):
        make_plan(**fields)


@pytest.fixture
def undecided(make_study, monkeypatch):
    """A study whose runs leave the precision open, on a machine where bf16 pays."""
    asked = []

    def choose(config):
        asked.append(config)
        return "bf16"

    monkeypatch.setattr(plan_module, "choose", choose)

    def make(**fields):
        study = make_study(**fields)
        tree = study.tree()
        tree["parts"]["main"]["base"]["train"].pop("precision", None)
        return StudyConfig.parse(tree), asked

    return make


def test_one_precision_is_chosen_for_all_runs(undecided, make_plan):
    study, asked = undecided(axes={"train.batch_size": [2, 64]})
    planned = plan(study)
    assert [config.train.batch_size for config in asked] == [64]  # the largest run's
    assert {run.config.train.precision for run in planned.runs} == {"bf16"}
    assert planned.study.precision == "bf16"
    stated = make_plan(axes={"train.batch_size": [2, 64], "train.precision": ["bf16"]})
    assert {r.config_hash for r in stated.runs} == {r.config_hash for r in planned.runs}


def test_a_study_keeps_the_precision_that_its_folder_began_with(undecided, tmp_path):
    study, asked = undecided()
    (tmp_path / "study.yaml").write_text("name: tiny\nprecision: fp32\n")
    again = continued(study, tmp_path)
    assert {run.config.train.precision for run in plan(again).runs} == {"fp32"}
    assert not asked
    assert continued(study, tmp_path / "new").precision == "auto"
    assert continued(study.replace(precision="bf16"), tmp_path).precision == "bf16"


def test_runs_of_different_precision_are_not_paired(make_plan):
    with pytest.raises(ConfigError, match="part main: arm half trains in bf16 and the baseline"):
        make_plan(arms={"none": {}, "half": {"train.precision": "bf16"}})
    assert len(make_plan(axes={"train.precision": ["fp32", "bf16"]}, seeds=[0]).runs) == 4
