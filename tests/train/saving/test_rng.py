import json
import random

import numpy as np
import torch

from gatelm.train.saving.rng import preserved_rng, rng_state, seed_all, set_rng_state

CPU = torch.device("cpu")


def draw():
    return [random.random(), np.random.rand(), np.random.randn(), *torch.rand(3).tolist()]


def test_the_state_survives_json():
    seed_all(5)
    draw()
    state = json.loads(json.dumps(rng_state(CPU)))
    first = [draw() for _ in range(3)]
    set_rng_state(state, CPU)
    assert [draw() for _ in range(3)] == first


def test_seeds_and_ranks_differ_and_repeat():
    drawn = []
    for seed, rank in ((0, 0), (0, 1), (1, 0), (0, 0)):
        seed_all(seed, rank)
        drawn.append(tuple(draw()))
    assert len(set(drawn)) == 3
    assert drawn[0] == drawn[3]


def test_a_preserved_body_leaves_no_trace():
    seed_all(1)
    expected = draw()
    seed_all(1)
    with preserved_rng(CPU):
        draw()
        torch.rand(100)
    assert draw() == expected
