"""A stand-in for open_clip 3.3 with the functions that the adapter calls, for machines without torchvision.

Signatures and meaning follow that version's ``factory.py``, ``pretrained.py`` and ``model.py``; the model is two small
layers whose activation shows whether QuickGELU was asked for.
"""

import numpy as np
import torch

_PRETRAINED = {
    "ViT-B-32": {"openai": {"quick_gelu": True}, "laion400m_e31": {"quick_gelu": True}, "laion2b": {}},
    "ViT-B-32-quickgelu": {"laion400m_e31": {"quick_gelu": True}},
}


class Model(torch.nn.Module):
    def __init__(self, quick: bool, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.quick = quick
        self.visual = torch.nn.Linear(3 * 4 * 4, 6)
        self.text = torch.nn.Embedding(300, 6)

    def activate(self, x):
        return x * torch.sigmoid(1.702 * x) if self.quick else torch.nn.functional.gelu(x)

    def encode_image(self, image, normalize: bool = False):
        return self.activate(self.visual(image.flatten(1)))

    def encode_text(self, text, normalize: bool = False):
        return self.activate(self.text(text).sum(1))


def get_pretrained_cfg(model: str, tag: str) -> dict:
    return _PRETRAINED.get(model, {}).get(tag.lower().replace("-", "_"), {})


def create_model_from_pretrained(
    model_name, pretrained=None, precision="fp32", device="cpu", force_quick_gelu=False, weights_only=True
):
    assert (precision, device, weights_only) == ("fp32", "cpu", True)
    if (
        not model_name.startswith(("local-dir:", "hf-hub:"))
        and not get_pretrained_cfg(model_name, pretrained)
        and (pretrained not in _PRETRAINED.get(model_name, {}))
    ):
        raise RuntimeError(f"Pretrained value '{pretrained}' is not a known tag or valid file path")
    quick = force_quick_gelu or model_name.endswith("quickgelu")
    model = Model(quick, seed=len(pretrained or model_name))
    return model, preprocess


def preprocess(image):
    assert image.mode == "RGB"
    pixels = np.asarray(image.resize((4, 4)), dtype=np.float32) / 255
    return torch.from_numpy(pixels).permute(2, 0, 1)


def get_model_preprocess_cfg(model) -> dict:
    return {"size": (4, 4), "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "interpolation": "bicubic"}


def get_tokenizer(model_name: str = ""):
    def tokenize(texts, context_length=None):
        out = torch.zeros(len(texts), 77, dtype=torch.long)
        for row, text in enumerate(texts):
            for place, letter in enumerate(text[:77]):
                out[row, place] = ord(letter) % 299 + 1
        return out

    return tokenize
