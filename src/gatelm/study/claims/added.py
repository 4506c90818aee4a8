"""Parameters that a change adds to a model, from its config alone."""

from __future__ import annotations

from copy import deepcopy

from gatelm.config.load import load_tree, packaged_recipes, set_path
from gatelm.nn.count import count
from gatelm.nn.model import ModelConfig
from gatelm.study.claims.predicates import Evidence, bounds_text
from gatelm.study.claims.registry import ParametersTest


def added_parameters(test: ParametersTest) -> Evidence:
    """Compare the added parameters, or their share, with the printed bounds.

    Raises:
        ConfigError: for a model or change that is no valid config.
    """
    tree = load_tree(test.model, packaged_recipes() / "claim")
    bare = count(ModelConfig.parse(tree, "model"))
    changed = deepcopy(tree)
    for path, value in test.change.items():
        set_path(changed, path, value)
    added = count(ModelConfig.parse(changed, "model")).total - bare.total
    figure, number = f"{added:,} parameters added", float(added)
    if test.share_of is not None:
        whole = bare.total if test.share_of == "total" else bare.attention
        number = added / whole
        figure += f", {100 * number:.3g} % of {whole:,} ({test.share_of})"
    above = test.at_least is None or number >= test.at_least
    held = above and (test.at_most is None or number <= test.at_most)
    text = f"{figure}; the test asks for {bounds_text(test)}"
    return Evidence("the published shape", "reproduced" if held else "not reproduced", text)
