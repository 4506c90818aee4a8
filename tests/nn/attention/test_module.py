"""The attention forward: backends, cache, documents, windows; and that there is only one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import gatelm
from gatelm.nn.attention.masks import PADDING
from gatelm.nn.attention.module import Attention, use_backend
from gatelm.nn.cache import KVCache
from gatelm.nn.gates.presets import GATE_PRESETS
from gatelm.nn.model import Decoder, ModelConfig
from helpers import decoder, random_ids

SOURCE = Path(gatelm.__file__).parent


def build(
    gates: tuple = (), *, backend: str = "sdpa", dtype: torch.dtype = torch.float64, **layer: object
) -> Decoder:
    mixer = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "qk_norm": {}, "backend": backend}
    cfg = ModelConfig.parse(
        {
            "vocab_size": 23,
            "hidden_dim": 24,
            "num_layers": 3,
            "layer": {
                "mixer": {**mixer, **layer.pop("mixer", {})},  # type: ignore[dict-item]
                "ffn": {"ffn_dim": 32},
                "gates": list(gates),
                **layer,
            },
        }
    )
    return decoder(cfg, scale=8.0, dtype=dtype)


def tokens(batch: int, length: int) -> torch.Tensor:
    return random_ids(23, batch, length)


def test_only_one_class_holds_an_attention_forward() -> None:
    assert not Attention.__subclasses__()
    callers = []
    for path in (SOURCE / "nn").rglob("*.py"):
        text = path.read_text()
        if "scaled_dot_product" in text or "scores.softmax" in text or "flex_attention" in text:
            callers.append(path.relative_to(SOURCE / "nn").as_posix())
    assert sorted(callers) == [
        f"attention/backends/{name}.py" for name in ("eager", "flex", "sdpa", "tail")
    ]


def test_attention_forward_fits_on_a_screen() -> None:
    tree = ast.parse((SOURCE / "nn/attention/module.py").read_text())
    (forward,) = [
        node
        for cls in tree.body
        if isinstance(cls, ast.ClassDef) and cls.name == "Attention"
        for node in cls.body
        if isinstance(node, ast.FunctionDef) and node.name == "forward"
    ]
    assert forward.end_lineno is not None
    assert forward.end_lineno - forward.lineno <= 50


@pytest.mark.parametrize("length", [1, 7, 64])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("with_documents", [False, True])
def test_eager_equals_sdpa(length: int, window: int | None, with_documents: bool) -> None:
    model = build(("sdpa-element",), dtype=torch.float32, mixer={"window_tokens": window})
    documents = (torch.arange(length) // 3).expand(2, length) if with_documents else None
    results = {}
    for backend in ("eager", "sdpa"):
        use_backend(model, backend)
        model.zero_grad()
        logits = model(tokens(2, length), documents=documents)
        logits.square().mean().backward()
        results[backend] = [logits, *(p.grad for p in model.parameters())]
    for a, b in zip(results["eager"], results["sdpa"], strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("preset", ["none", *GATE_PRESETS])
def test_prefill_and_decode_equal_full_forward(preset: str) -> None:
    model = build(() if preset == "none" else (preset,))
    ids = tokens(2, 9)
    full = model(ids)
    cache = KVCache()
    steps = [model(ids[:, :4], cache=cache), model(ids[:, 4:7], cache=cache)]
    steps += [model(ids[:, i : i + 1], cache=cache) for i in (7, 8)]
    torch.testing.assert_close(torch.cat(steps, dim=1), full, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("preset", ["none", *GATE_PRESETS])
@pytest.mark.parametrize("window", [None, 3])
def test_packed_documents_equal_separate_ones(preset: str, window: int | None) -> None:
    model = build(
        () if preset == "none" else (preset,),
        mixer={"window_tokens": window},
    )
    a, b = tokens(1, 5), tokens(1, 9)[:, 5:]
    documents = torch.tensor([[0] * 5 + [1] * 4])
    packed = model(torch.cat((a, b), dim=1), documents=documents)
    separate = torch.cat((model(a), model(b)), dim=1)
    torch.testing.assert_close(packed, separate, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing_and_stays_finite(backend: str, side: str) -> None:
    model = build(("sdpa-element", "scores-key"), backend=backend)
    ids, pad = tokens(1, 6), torch.zeros(1, 3, dtype=torch.long)
    real, none = torch.zeros(1, 6, dtype=torch.long), torch.full((1, 3), PADDING)
    pair = (pad, ids) if side == "left" else (ids, pad)
    docs = (none, real) if side == "left" else (real, none)
    keep = slice(3, None) if side == "left" else slice(0, 6)
    both = torch.cat((torch.cat(pair, dim=1), torch.zeros(1, 9, dtype=torch.long)))
    all_padding = torch.full((1, 9), PADDING)
    logits = model(both, documents=torch.cat((torch.cat(docs, dim=1), all_padding)))
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[:1, keep], model(ids), atol=1e-10, rtol=1e-10)
    logits.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_left_padded_batch_decodes_like_each_row_alone() -> None:
    model = build(("value", "sdpa-head"))
    ids = tokens(1, 8)
    padded = torch.cat((torch.zeros(1, 2, dtype=torch.long), ids[:, :5]), dim=1)
    cache = KVCache()
    documents = torch.tensor([[PADDING] * 2 + [0] * 5])
    out = [model(padded, documents=documents, cache=cache)[:, 2:]]
    out += [model(ids[:, i : i + 1], cache=cache) for i in (5, 6, 7)]
    torch.testing.assert_close(torch.cat(out, dim=1), model(ids), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_window_of_w_sees_exactly_w_keys(backend: str, window: int) -> None:
    model = build(backend=backend, mixer={"window_tokens": window, "num_kv_heads": 4})
    attention = model.layers[0].attn
    length = 8
    seen: dict[str, torch.Tensor] = {}
    attention.gates.taps["v_gated"].register_forward_hook(
        lambda m, i, o: seen.setdefault("v", o.detach().requires_grad_())
    )
    attention.gates.taps["sdpa"].register_forward_hook(lambda m, i, o: seen.setdefault("y", o))
    model(tokens(1, length))
    for i in range(length):
        (grad,) = torch.autograd.grad(seen["y"][0, i].sum(), seen["v"], retain_graph=True)
        used = grad[0].abs().sum((1, 2)).nonzero().flatten().tolist()
        assert used == list(range(max(0, i - window + 1), i + 1))


def test_no_gate_has_the_ungated_parameters_only() -> None:
    assert not [name for name, _ in build().named_parameters() if ".gates." in name]


def test_taps_add_no_state() -> None:
    keys = build(("sdpa-element",)).state_dict().keys()
    assert not [key for key in keys if "tap" in key]
    assert "layers.0.attn.gates.sdpa.proj.x.weight" in keys


def test_attention_dropout_acts_in_training_only() -> None:
    model = build(mixer={"dropout": 0.5})
    ids = tokens(1, 6)
    torch.testing.assert_close(model(ids), model(ids))
    model.train()
    assert not torch.allclose(model(ids), model(ids))


def test_bf16_autocast_stays_near_fp32() -> None:
    model = build(("sdpa-element",), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.div_(8.0 if parameter.dim() > 1 else 1.0)
        exact = model(tokens(2, 16))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rough = model(tokens(2, 16))
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, atol=2e-2, rtol=2e-2)
