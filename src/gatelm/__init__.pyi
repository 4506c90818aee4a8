"""The public names as type checkers see them; `__init__.py` loads each when it is asked for."""

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

__version__: str
_WHERE: dict[str, str]
