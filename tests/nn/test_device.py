import pytest
import torch

from gatelm.config import ConfigError
from gatelm.nn.device import available_bytes, device_of


def test_names_of_devices():
    assert device_of("cpu") == torch.device("cpu")
    assert device_of("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["meta", "mps", "nowhere", "cuda:99", ""])
def test_a_device_that_cannot_be_used_is_one_sentence(name):
    with pytest.raises(ConfigError, match=f"train.device: {name} cannot be used here") as error:
        device_of(name, "train.device")
    assert "\n" not in str(error.value)


def test_free_memory_is_some():
    assert available_bytes(torch.device("cpu")) > 2**20
