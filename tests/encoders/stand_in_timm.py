"""A stand-in for timm 1.0 with the functions that the adapter calls, for machines without torchvision."""

import sys
from types import ModuleType

import numpy as np
import torch


def create_model(model_name, pretrained=False, *, num_classes=1000):
    if model_name not in ("tiny_net",) and not model_name.startswith("local-dir:"):
        raise RuntimeError(f"Unknown model ({model_name})")
    assert pretrained
    torch.manual_seed(3)
    body = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 2, 2), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    return body if num_classes == 0 else torch.nn.Sequential(*body, torch.nn.Linear(5, num_classes))


data = ModuleType("timm.data")


def resolve_model_data_config(model):
    return {"input_size": (3, 8, 8), "mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2), "crop_pct": 1.0}


def create_transform(input_size, mean, std, crop_pct, is_training=False):
    assert not is_training

    def transform(image):
        pixels = np.asarray(image.resize(input_size[1:]), dtype=np.float32) / 255
        return torch.from_numpy((pixels - np.float32(mean)) / np.float32(std)).permute(2, 0, 1)

    return transform


data.resolve_model_data_config = resolve_model_data_config
data.create_transform = create_transform


def install(monkeypatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "timm", sys.modules[__name__])
    monkeypatch.setitem(sys.modules, "timm.data", data)
    return sys.modules[__name__]
