"""gatelm: language models with gated attention, from the gate to the verdict.

The names of `__all__` are the public face. Each is imported when it is first asked for, so that
`import gatelm` alone loads neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gatelm.hf.modeling.registration import register as _register

if TYPE_CHECKING:
    from gatelm.analysis.metrics.registry import describe as describe_metric
    from gatelm.analysis.notebook import Report, analyze
    from gatelm.analysis.probe.interventions import intervene
    from gatelm.analysis.probe.recording import keep, record
    from gatelm.config.base import ConfigError
    from gatelm.config.load import load as load_config
    from gatelm.hf.convert.convert import ConvertOptions, convert
    from gatelm.hf.convert.extend import extend_model
    from gatelm.hf.load import open_model
    from gatelm.longcontext.extend import ExtendRequest
    from gatelm.nn.block import LayerConfig
    from gatelm.nn.count import count as count_parameters
    from gatelm.nn.count import flops_per_token
    from gatelm.nn.gates.gate import GateConfig
    from gatelm.nn.gates.presets import GATE_PRESETS
    from gatelm.nn.init import init_weights
    from gatelm.nn.model import Decoder, ModelConfig
    from gatelm.presets import model_preset, model_presets
    from gatelm.report.study.build import build_report
    from gatelm.study.planning.plan import plan as plan_study
    from gatelm.study.planning.spec import StudyConfig, load_study
    from gatelm.study.results.collect import write_results
    from gatelm.study.running.run import run as run_study
    from gatelm.train.config import RunConfig
    from gatelm.train.saving.export import load_model
    from gatelm.train.saving.folder import RunResult
    from gatelm.train.trainer import train as train_model

__version__ = "0.1.0"

_WHERE = {
    "ConfigError": "gatelm.config.base:ConfigError",
    "ConvertOptions": "gatelm.hf.convert.convert:ConvertOptions",
    "Decoder": "gatelm.nn.model:Decoder",
    "ExtendRequest": "gatelm.longcontext.extend:ExtendRequest",
    "GATE_PRESETS": "gatelm.nn.gates.presets:GATE_PRESETS",
    "GateConfig": "gatelm.nn.gates.gate:GateConfig",
    "LayerConfig": "gatelm.nn.block:LayerConfig",
    "ModelConfig": "gatelm.nn.model:ModelConfig",
    "Report": "gatelm.analysis.notebook:Report",
    "RunConfig": "gatelm.train.config:RunConfig",
    "RunResult": "gatelm.train.saving.folder:RunResult",
    "StudyConfig": "gatelm.study.planning.spec:StudyConfig",
    "analyze": "gatelm.analysis.notebook:analyze",
    "build_report": "gatelm.report.study.build:build_report",
    "convert": "gatelm.hf.convert.convert:convert",
    "count_parameters": "gatelm.nn.count:count",
    "describe_metric": "gatelm.analysis.metrics.registry:describe",
    "extend_model": "gatelm.hf.convert.extend:extend_model",
    "flops_per_token": "gatelm.nn.count:flops_per_token",
    "init_weights": "gatelm.nn.init:init_weights",
    "intervene": "gatelm.analysis.probe.interventions:intervene",
    "keep": "gatelm.analysis.probe.recording:keep",
    "load_config": "gatelm.config.load:load",
    "load_model": "gatelm.train.saving.export:load_model",
    "load_study": "gatelm.study.planning.spec:load_study",
    "model_preset": "gatelm.presets:model_preset",
    "model_presets": "gatelm.presets:model_presets",
    "open_model": "gatelm.hf.load:open_model",
    "plan_study": "gatelm.study.planning.plan:plan",
    "record": "gatelm.analysis.probe.recording:record",
    "run_study": "gatelm.study.running.run:run",
    "train_model": "gatelm.train.trainer:train",
    "write_results": "gatelm.study.results.collect:write_results",
}
"""The module of each public name, and its name there."""

__all__ = [
    "GATE_PRESETS",
    "ConfigError",
    "ConvertOptions",
    "Decoder",
    "ExtendRequest",
    "GateConfig",
    "LayerConfig",
    "ModelConfig",
    "Report",
    "RunConfig",
    "RunResult",
    "StudyConfig",
    "analyze",
    "build_report",
    "convert",
    "count_parameters",
    "describe_metric",
    "extend_model",
    "flops_per_token",
    "init_weights",
    "intervene",
    "keep",
    "load_config",
    "load_model",
    "load_study",
    "model_preset",
    "model_presets",
    "open_model",
    "plan_study",
    "record",
    "run_study",
    "train_model",
    "write_results",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'gatelm' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_register()
