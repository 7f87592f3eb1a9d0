"""Prompt templates from Table 2 of Gupta et al. (2026), with ``{}`` for the class name."""

from __future__ import annotations

_SHOTS = (
    "a photo of {a} {}.",
    "a blurry photo of {a} {}.",
    "a black and white photo of {a} {}.",
    "a low contrast photo of {a} {}.",
    "a high contrast photo of {a} {}.",
    "a bad photo of {a} {}.",
    "a good photo of {a} {}.",
    "a photo of {a} small {}.",
    "a photo of {a} big {}.",
)

# The CLIP repository writes "a embroidered" and "a origami"; Table 2 does not.
_CALTECH101 = (
    "a photo of a {}.",
    "a painting of a {}.",
    "a plastic {}.",
    "a sculpture of a {}.",
    "a sketch of a {}.",
    "a tattoo of a {}.",
    "a toy {}.",
    "a rendition of a {}.",
    "an embroidered {}.",
    "a cartoon {}.",
    "a {} in a video game.",
    "a plushie {}.",
    "an origami {}.",
    "art of a {}.",
    "graffiti of a {}.",
    "a drawing of a {}.",
    "a doodle of a {}.",
    "a photo of the {}.",
    "a painting of the {}.",
    "the plastic {}.",
    "a sculpture of the {}.",
    "a sketch of the {}.",
    "a tattoo of the {}.",
    "the toy {}.",
    "a rendition of the {}.",
    "the embroidered {}.",
    "the cartoon {}.",
    "the {} in a video game.",
    "the plushie {}.",
    "the origami {}.",
    "art of the {}.",
    "graffiti of the {}.",
    "a drawing of the {}.",
    "a doodle of the {}.",
)

#: Templates by data set, in the order of Table 2. ``folder`` uses CLIP's basic template.
TEMPLATES: dict[str, tuple[str, ...]] = {
    "pets": ("a photo of a {}, a type of pet.",),
    "cifar100": tuple(shot.replace("{a}", article) for article in ("a", "the") for shot in _SHOTS),
    "caltech101": _CALTECH101,
    "stl10": ("a photo of a {}.", "a photo of the {}."),
    "dtd": tuple(
        f"a photo of {article} {{}} {noun}."
        for article in ("a", "the")
        for noun in ("texture", "pattern", "thing", "object")
    ),
    "folder": ("a photo of a {}.",),
}
