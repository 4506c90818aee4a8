"""GGUF files, which transformers dequantises; the positions that it leaves out are added."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from gatelm.config import ConfigError
from gatelm.hf.convert.foreign import check_foreign_config

Load = Callable[..., Any]
"""Reads the weights, from a file's folder, its name as `gguf_file`, and the config to build."""

_LLAMA3 = tuple(
    {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original": original}
    for factor in (8.0, 32.0, 16.0, 4.0)
    for original in (8192, 4096)
)
"""Llama 3.1's settings, by which the factors are known that published files hold alone."""
_FACTORS = ("rope_freqs", "rope_factors")
"""Names of tensors with factors of the rotary frequencies, read apart from the weights."""
_EXPERTS = re.compile(r"\.ffn_\w+_exps\.")
"""Names of tensors of stacked experts, which transformers splits under other names."""
_YARN = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
_KNOWN = {"type", "factor", "original_context_length", "finetuned", "attn_factor", *_YARN}
_NEUTRAL = {
    "yarn_ext_factor": 1.0,
    "yarn_attn_factor": 1.0,
    "yarn_log_multiplier": 0.0,
    "alpha": 0.0,
}


def check_packages(path: Path) -> None:
    """
    Raises:
        ConfigError: where a package that reads GGUF is absent.
    """
    absent = [name for name in ("accelerate", "gguf") if not importlib.util.find_spec(name)]
    if absent:
        noun = "packages" if len(absent) > 1 else "package"
        raise ConfigError(
            f"{path}: reading GGUF needs the {noun} {' and '.join(absent)} "
            f"(pip install {' '.join(absent)})"
        )


def read_model(path: Path, load: Load) -> Any:
    """Read the model of a GGUF file, with its positions scaled as the file says.

    Args:
        load: reads the weights, given `config` and `gguf_file`.

    Raises:
        ConfigError: for a file that cannot be read, or a scaling that is not known.
    """
    check_packages(path)
    try:
        config = AutoConfig.from_pretrained(
            path.parent, gguf_file=path.name, local_files_only=True, trust_remote_code=False
        )
        check_layers(config, _number_of_tensors(path), str(path))
        check_foreign_config(config.to_dict(), str(path))
        metadata, factors = _positions(path)
    except ConfigError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(f"{path}: the model cannot be loaded: {lines[0]:.300}") from None
    scaling = rope_scaling(metadata, factors, config, str(path))
    if scaling is not None:
        theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10000.0)
        config.rope_parameters = {**scaling, "rope_theta": theta}
    model = load(gguf_file=path.name, config=config)
    _check_frequencies(model, factors, config, path)
    return model


def _check_frequencies(
    model: Any, factors: Mapping[str, list[float]], config: PreTrainedConfig, path: Path
) -> None:
    """Compare the model's frequencies with base^(-2i/d) / factor, straight from the file."""
    divisors = factors.get("rope_freqs")
    frequencies = [b for name, b in model.named_buffers() if name.endswith("rotary_emb.inv_freq")]
    if divisors is None or not frequencies:
        return
    base, pairs = float(config.rope_parameters["rope_theta"]), len(divisors)
    exponents = torch.arange(pairs, dtype=torch.float64) / pairs
    expected = base**-exponents / torch.tensor(divisors, dtype=torch.float64)
    found = frequencies[0].double().cpu()
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=1e-3):
        raise ConfigError(
            f"{path}: the frequencies of its positions were not understood (rope_freqs.weight); "
            "convert the model's Hugging Face folder instead"
        )


def check_layers(config: PreTrainedConfig, tensors: int, where: str) -> None:
    """Compare the layers that a config asks for with the tensors that there are.

    Raises:
        ConfigError: for more layers than tensors, before a model of that size is built.
    """
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if not isinstance(layers, int) or not 0 <= layers <= tensors:
        raise ConfigError(f"{where}: {layers!r} layers, but the file has {tensors} tensors in all")


def unknown_tensors(path: Path, model: PreTrainedModel) -> list[str]:
    """Return the names of the file's tensors that the model made from it does not have."""
    from gguf import GGUFReader
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    reader = GGUFReader(str(path))
    architecture = str(reader.fields["general.architecture"].contents())
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=model.config.to_dict())
    known = get_gguf_hf_weights_map(model, processor)
    return [
        tensor.name
        for tensor in reader.tensors
        if tensor.name not in known
        and not tensor.name.startswith(_FACTORS)
        and not _EXPERTS.search(tensor.name)
    ]


def _number_of_tensors(path: Path) -> int:
    with path.open("rb") as file:
        header = file.read(24)
    return int.from_bytes(header[8:16], "little") if len(header) == 24 else 0


def _positions(path: Path) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Read the keys below `<arch>.rope.scaling`, and the tensors with factors of frequencies."""
    from gguf import GGUFReader

    reader = GGUFReader(str(path))
    metadata = {
        name.partition(".rope.scaling.")[2]: field.contents()
        for name, field in reader.fields.items()
        if ".rope.scaling." in name
    }
    factors = {
        tensor.name.removesuffix(".weight"): [float(value) for value in tensor.data]
        for tensor in reader.tensors
        if tensor.name.startswith(_FACTORS)
    }
    return metadata, factors


def rope_scaling(
    metadata: Mapping[str, Any],
    factors: Mapping[str, list[float]],
    config: PreTrainedConfig,
    where: str,
) -> dict[str, Any] | None:
    """Return the scaling as `rope_parameters` of transformers, without the base; None for none.

    Args:
        metadata: the keys below `<arch>.rope.scaling`.
        factors: `rope_freqs`, or `rope_factors_short` and `rope_factors_long`: divisors of the
            frequencies, one for each pair of channels.

    Raises:
        ConfigError: for a scaling that is not known: the model would silently be another one.
    """
    unknown = {
        key: value
        for key, value in metadata.items()
        if key not in _KNOWN and value != _NEUTRAL.get(key)
    }
    kind = str(metadata.get("type", "none"))
    if unknown or kind not in ("none", "linear", "yarn", "longrope"):
        key, value = next(iter(unknown.items()), ("type", kind))
        raise ConfigError(
            f"{where}: rope.scaling.{key} is {value!r}, which is not known here; convert the "
            "model's Hugging Face folder instead"
        )
    context = int(getattr(config, "max_position_embeddings", 0) or 0)
    factor = float(metadata.get("factor", 1.0))
    if not (math.isfinite(factor) and factor > 0):
        raise ConfigError(f"{where}: rope.scaling.factor is {factor}; it must be above 0")
    original = metadata.get("original_context_length")
    original = int(original) if original else max(int(context / factor), 1)
    if "rope_freqs" in factors:
        if kind in ("yarn", "longrope") or factor != 1.0:
            raise ConfigError(f"{where}: rope_freqs.weight beside rope.scaling is not known here")
        return _by_factors(factors["rope_freqs"], factors["rope_freqs"], config, original, 1.0)
    if "rope_factors_short" in factors or "rope_factors_long" in factors:
        short = factors.get("rope_factors_short") or factors["rope_factors_long"]
        long = factors.get("rope_factors_long") or short
        attention = float(metadata.get("attn_factor") or 1.0)
        return _by_factors(short, long, config, original, attention)
    if kind == "longrope":
        raise ConfigError(f"{where}: rope.scaling.type is longrope, but its factors are missing")
    if kind == "none" or (factor == 1.0 and kind == "linear"):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    out: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
    }
    for key, theirs in _YARN.items():
        if metadata.get(key):
            out[theirs] = float(metadata[key])
    if metadata.get("attn_factor"):
        usual = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        out["attention_factor"] = float(metadata["attn_factor"]) * usual
    return out


def _by_factors(
    short: list[float],
    long: list[float],
    config: PreTrainedConfig,
    original: int,
    attention: float,
) -> dict[str, Any] | None:
    if all(value == 1.0 for value in (*short, *long)):
        return None
    base = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10000.0)
    for setting in _LLAMA3 if short == long and attention == 1.0 else ():
        if torch.allclose(
            torch.tensor(short), _llama3_factors(setting, len(short), base), rtol=1e-4
        ):
            return {
                "rope_type": "llama3",
                "factor": setting["factor"],
                "low_freq_factor": setting["low_freq_factor"],
                "high_freq_factor": setting["high_freq_factor"],
                "original_max_position_embeddings": setting["original"],
            }
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "attention_factor": attention,
        "original_max_position_embeddings": original,
    }


def _llama3_factors(setting: Mapping[str, float], pairs: int, base: float) -> torch.Tensor:
    """Compute the divisors (pairs,) of the frequencies by the rule of Llama 3.1."""
    frequency = base ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
    rotations = setting["original"] * frequency / (2 * math.pi)
    low, high = setting["low_freq_factor"], setting["high_freq_factor"]
    smooth = ((rotations - low) / (high - low)).clamp(0, 1)
    return (1 / ((1 - smooth) / setting["factor"] + smooth)).float()
