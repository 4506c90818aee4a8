"""Small valid inputs of every kind that the command line reads, to be mutated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

RUN = {
    "name": "tiny",
    "model": {
        "hidden_dim": 16,
        "num_layers": 2,
        "layer": {
            "mixer": {"num_heads": 2, "head_dim": 8, "rope": {"base": 10000.0}},
            "ffn": {"kind": "swiglu", "ffn_dim": 24},
            "gates": ["sdpa-head", {"site": "v", "activation": "tanh01", "granularity": "head"}],
        },
    },
    "data": {"kind": "bigram_backcopy", "num_tokens": 16, "seq_len": 16},
    "optim": {"lr": 3e-3, "schedule": {"kind": "cosine", "warmup_steps": 1}},
    "train": {
        "total_steps": 2,
        "batch_size": 4,
        "eval_sequences": 4,
        "health_sequences": 4,
        "precision": "fp32",
        "device": "cpu",
        "threads": 1,
    },
}
STUDY = {
    "name": "tiny",
    "parts": {
        "main": {
            "question": "does it?",
            "base": RUN,
            "arms": {"none": {"model.layer.gates": []}, "low": {"optim.lr": 0.001}},
            "baseline": "none",
            "axes": {"optim.weight_decay": [0.0, 0.1]},
            "seeds": [0, 1],
            "metrics": ["val_loss", "sink_rate"],
            "primary_metrics": ["val_loss"],
            "match": {"by": "model.layer.ffn.ffn_dim", "multiple": 4},
        }
    },
}
TEXT = "Fellow citizens of the Senate, the state of the union is good. " * 8


def write_yaml(path: Path, tree: object) -> Path:
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return path


def write_tokenizer(path: Path) -> None:
    """A byte-level BPE of 300 entries, as `tokenizer.json`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.save(str(path))


def write_hf_folder(path: Path, kind: str = "llama") -> Path:
    """A folder of a two-layer model of transformers, with a tokenizer."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

    path.mkdir(parents=True)
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    write_tokenizer(path / "tokenizer.json")
    PreTrainedTokenizerFast(
        tokenizer_file=str(path / "tokenizer.json"), eos_token="<|end|>", bos_token="<|end|>"
    ).save_pretrained(path)
    return path


def write_gguf(path: Path, **metadata: Any) -> Path:
    """A two-layer Llama as GGUF; `metadata` adds keys, or replaces them (None leaves one out).

    rope_factors adds the tensor of that kind, more_tensors random tensors by name and shape.
    """
    import gguf

    tokenizer_file = path.with_suffix(".tokenizer.json")
    write_tokenizer(tokenizer_file)
    model = json.loads(tokenizer_file.read_text(encoding="utf-8"))["model"]
    tokenizer_file.unlink()
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer = gguf.GGUFWriter(str(path), "llama")
    values: dict[str, object] = {
        "llama.block_count": 2,
        "llama.context_length": 128,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 48,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "llama.rope.dimension_count": 8,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        **metadata,
    }
    for name, value in values.items():
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
    writer.add_array("tokenizer.ggml.tokens", tokens)
    writer.add_array("tokenizer.ggml.token_type", [3] + [1] * (len(tokens) - 1))
    writer.add_array("tokenizer.ggml.merges", [" ".join(pair) for pair in model["merges"]])
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        scale = 1.0 if "norm" in name else 0.0
        writer.add_tensor(name, (scale + 0.1 * random.normal(size=shape)).astype(np.float32))

    add("token_embd.weight", len(tokens), 32)
    add("output_norm.weight", 32)
    add("output.weight", len(tokens), 32)
    for layer in range(2):
        for name, shape in {
            "attn_norm": (32,),
            "attn_q": (32, 32),
            "attn_k": (16, 32),
            "attn_v": (16, 32),
            "attn_output": (32, 32),
            "ffn_norm": (32,),
            "ffn_gate": (48, 32),
            "ffn_up": (48, 32),
            "ffn_down": (32, 48),
        }.items():
            add(f"blk.{layer}.{name}.weight", *shape)
    for name, shape in metadata.get("more_tensors", {}).items():
        add(name, *shape)
    factors = metadata.get("rope_factors")
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
