import torch

from gatelm.analysis.estimate import estimate
from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.analysis.windows import FirstToken, Windows
from gatelm.nn.device import available_bytes


def windows(rows, seq_len):
    tokens = torch.zeros(rows, seq_len, dtype=torch.long)
    return Windows(tokens, tokens, FirstToken(None, "text"), 1, 1.0)


def test_matrices_grow_with_the_square_and_the_rest_does_not(build):
    probe = GatelmProbe(build("sdpa-head"))
    short, long = estimate(probe, windows(2, 128)), estimate(probe, windows(2, 1024))
    assert short.weights_bytes == 4 * probe.parameters
    assert short.matrices_bytes == 2 * 4 * 128**2 * 4
    assert long.matrices_bytes == 64 * short.matrices_bytes
    assert long.working_bytes < 9 * short.working_bytes
    assert long.total_bytes == long.weights_bytes + long.working_bytes
    assert 0 < short.seconds < long.seconds


def test_the_model_is_as_before(build):
    model = build("sdpa-head").train()
    estimate(GatelmProbe(model), windows(1, 16))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_free_memory_is_known_on_linux():
    free = available_bytes(torch.device("cpu"))
    assert free is None or free > 0
