import torch

from gatelm.analysis.probe.layout import Layout


def test_first_tokens_come_from_the_documents():
    ids = torch.tensor([[-1, -1, 0, 0, 0, 1, 2, 2], [0, 0, 0, 0, 0, 0, -1, -1]])
    layout = Layout.of(ids, 2, 8)
    assert layout.position.tolist() == [[0, 1, 0, 1, 2, 0, 0, 1], [0, 1, 2, 3, 4, 5, 0, 1]]
    assert layout.first.tolist() == [[0, 0, 2, 2, 2, 5, 6, 6], [0, 0, 0, 0, 0, 0, 6, 6]]
    assert layout.begins.nonzero().tolist() == [[0, 2], [0, 5], [0, 6], [1, 0]]
    assert layout.document_tokens().tolist() == [[2, 2, 3, 3, 3, 1, 2, 2], [6] * 6 + [2] * 2]


def test_without_documents_a_row_is_one():
    layout = Layout.of(None, 2, 3)
    assert layout.valid.all()
    assert layout.position.tolist() == [[0, 1, 2]] * 2
    assert layout.first.tolist() == [[0, 0, 0]] * 2
