import pytest
import torch

from gatelm.nn.cache import Buffer


@pytest.mark.parametrize("capacity", [None, 4, 20, 100])
def test_it_holds_what_was_appended(capacity):
    torch.manual_seed(0)
    parts = [torch.randn(2, n, 3, 4) for n in (1, 5, 1, 1, 7, 2)]
    buffer = Buffer(capacity)
    for i, part in enumerate(parts):
        found = buffer.append(part)
        assert torch.equal(found, torch.cat(parts[: i + 1], dim=1))
        assert torch.equal(buffer.tokens, found)


def test_a_known_length_is_never_copied_and_an_unknown_one_seldom():
    def places(buffer):
        return {buffer.append(torch.ones(1, 1, 2)).data_ptr() for _ in range(1000)}

    assert len(places(Buffer(1000))) == 1
    assert len(places(Buffer())) < 20


def test_earlier_views_keep_their_content():
    buffer = Buffer()
    first = buffer.append(torch.full((1, 2, 1), 1.0))
    buffer.append(torch.full((1, 5, 1), 2.0))
    assert first.flatten().tolist() == [1.0, 1.0]


def test_gradients_reach_every_part():
    parts = [torch.randn(1, n, 2, dtype=torch.float64, requires_grad=True) for n in (2, 1, 3)]
    buffer = Buffer(100)
    total = torch.zeros(())
    for part in parts:
        total = total + (buffer.append(part) ** 2).sum()
    total.backward()
    for times, part in zip((3, 2, 1), parts, strict=True):
        assert part.grad is not None
        assert torch.allclose(part.grad, 2 * times * part.detach())
