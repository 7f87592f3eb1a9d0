"""Edits of a text in which only the class is changed (figures 55, 56)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from congruence.errors import InputError
from congruence_papers.canonical.anchors import both_rows, draw_anchors, fit_modality, fit_on, pair_name
from congruence_papers.canonical.baselines import ModalityMap
from congruence_papers.canonical.captions import CaptionBank, no_captions, shared_words
from congruence_papers.canonical.data import Collection, unit_rows
from congruence_papers.canonical.neighbors import item, nearest, usable
from congruence_papers.job import Job
from congruence_papers.plain import Example

__all__ = ["run_edits"]

RESAMPLED = "the anchors, {share:.0%} of the training rows each time, and the texts edited"


@dataclass(frozen=True)
class _Texts:
    """Texts that are searched, and edited texts that are mapped.

    ``read`` is the text nearest to each query image, and ``wanted`` the class named in each edited text. Pairs of arrays belong to the source and
    the target model, except for ``templates``, which holds the templates of the edited texts and of the gallery.
    """

    gallery: tuple[np.ndarray, np.ndarray]
    gallery_words: tuple[str, ...]
    gallery_labels: np.ndarray
    queries: np.ndarray
    read: np.ndarray
    edited: tuple[np.ndarray, np.ndarray]
    edited_words: Sequence[str]
    wanted: np.ndarray
    templates: tuple[np.ndarray, np.ndarray] | None = None


def run_edits(job: Job[Collection]) -> None:
    """Change only the class in a text, map the edited text, and evaluate the nearest text and image in the target.

    The text is the caption nearest to an image in the source, in which the class name is replaced. Without captions, it is the nearest class
    prompt, and the edited text is the prompt of another class with the same template.
    """
    examples: list[Example] = []
    for collection, heldout, pair in usable(job):
        _check_texts(job, heldout)
        test = ~heldout.train
        source_images, target_images = (side[test] for side in both_rows(heldout, pair, "image"))
        ids, labels = heldout.ids[test], heldout.labels[test]
        modality = fit_modality(job, collection, pair)
        what = {"data": heldout.name, "pair": pair_name(heldout, pair)}
        for seed in job.seeds:
            rng = np.random.default_rng([seed, 31])
            anchors = draw_anchors(job, collection, modality, job["share"], rng)
            mapping, _ = fit_on(job, collection, pair, modality, anchors, seed=seed)
            most = min(job["swaps"], 100) if job.quick else job["swaps"]
            texts = (
                _prompts(heldout, pair, source_images, most, rng)
                if heldout.bank is None
                else _captions(heldout, heldout.bank, pair, source_images, most, rng)
            )
            source_texts, target_texts = texts.gallery
            mapped_text = nearest(unit_rows(mapping("text", texts.edited[0])), target_texts, 1)[:, 0]
            target_text = nearest(texts.edited[1], target_texts, 1)[:, 0]
            source_text = nearest(texts.edited[0], source_texts, 1)[:, 0]
            mapped = nearest(target_texts[mapped_text], target_images, 5)
            target = nearest(target_texts[target_text], target_images, 5)
            source = nearest(source_texts[source_text], source_images, 5)
            wanted = texts.wanted
            values = [
                ("edited_class_text", "mapped", np.mean(texts.gallery_labels[mapped_text] == wanted)),
                ("edited_class_text", "target alone", np.mean(texts.gallery_labels[target_text] == wanted)),
                ("edited_class_image", "mapped", np.mean(labels[mapped[:, 0]] == wanted)),
                ("edited_class_image", "target alone", np.mean(labels[target[:, 0]] == wanted)),
                ("edited_class_image_at_5", "mapped", np.mean((labels[mapped] == wanted[:, None]).any(axis=1))),
                ("edited_class_image_at_5", "target alone", np.mean((labels[target] == wanted[:, None]).any(axis=1))),
                ("edited_class_image_at_5", "source alone", np.mean((labels[source] == wanted[:, None]).any(axis=1))),
            ]
            for metric, series, value in values:
                job.results.add({**what, "series": series, "metric": metric, "quantity": "after"}, float(value))
            random, _ = fit_on(job, collection, pair, modality, anchors, "random", seed=seed)
            job.results.add_all(what, _control(heldout, texts, random, labels, target_images), "random_rotation")
            for quantity, kept in _rest_kept(heldout, texts, mapped_text).items():
                line = {**what, "series": "mapped"} if quantity == "after" else what
                job.results.add({**line, "metric": "rest_kept", "quantity": quantity}, kept)
            job.tick()
        for q in range(min(job["examples"], len(texts.queries))):
            examples.append(
                {
                    "query": item(heldout, str(ids[texts.queries[q]])),
                    "read": texts.gallery_words[texts.read[q]] if texts.gallery_words else "",
                    "mapped_to": texts.edited_words[q] if texts.edited_words else "",
                    "rows": {"found": [item(heldout, str(ids[k])) for k in mapped[q]]},
                }
            )
    job.extra["examples"] = examples


def _control(
    heldout: Collection, texts: _Texts, mapping: ModalityMap, labels: np.ndarray, target_images: np.ndarray
) -> dict[str, float]:
    """Return the scores of a random rotation about the correct means."""
    target_texts, wanted = texts.gallery[1], texts.wanted
    text = nearest(unit_rows(mapping("text", texts.edited[0])), target_texts, 1)[:, 0]
    images = nearest(target_texts[text], target_images, 5)
    return {
        "edited_class_text": float(np.mean(texts.gallery_labels[text] == wanted)),
        "edited_class_image": float(np.mean(labels[images[:, 0]] == wanted)),
        "edited_class_image_at_5": float(np.mean((labels[images] == wanted[:, None]).any(axis=1))),
        "rest_kept": _rest_kept(heldout, texts, text)["after"],
    }


def _check_texts(job: Job[Collection], heldout: Collection) -> None:
    """Add a note on the texts that are edited. Raises InputError for data with one template per class and no captions, where an edit preserves nothing."""
    templates = len(np.unique(heldout.prompt_templates))
    named = ", ".join(f"{before} → {after}" for before, after in job["edits"].items())
    if heldout.bank is not None:
        count = len(heldout.bank.edited_texts)
        job.add_note(
            f"{heldout.name}: {len(heldout.bank.texts)} captions, {count} of them edited{f' ({named})' if named else ''}."
        )
        return
    if templates < 2:
        raise no_captions(heldout.name, job.config.name)
    job.add_note(
        f"{heldout.name}: no captions here. Class prompts of {templates} templates are edited instead, with the class replaced by a random one"
        f"{f'; {named} needs a file of captions' if named else ''}."
    )


def _prompts(
    heldout: Collection, pair: tuple[int, int], images: np.ndarray, most: int, rng: np.random.Generator
) -> _Texts:
    """Find the class prompt nearest to each image, and replace its class by a random one."""
    source_texts, target_texts = both_rows(heldout, pair, "text")
    queries = rng.choice(len(images), min(most, len(images)), replace=False)
    read = nearest(images[queries], source_texts, 1)[:, 0]
    edited = np.empty(len(read), dtype=int)
    for q, row in enumerate(read.tolist()):
        same = heldout.prompt_templates == heldout.prompt_templates[row]
        other = np.flatnonzero(same & (heldout.prompt_labels != heldout.prompt_labels[row]))
        edited[q] = rng.choice(other) if len(other) else row
    return _Texts(
        (source_texts, target_texts),
        heldout.texts,
        heldout.prompt_labels,
        queries,
        read,
        (source_texts[edited], target_texts[edited]),
        [heldout.texts[k] for k in edited] if heldout.texts else [],
        heldout.prompt_labels[edited],
        (heldout.prompt_templates[edited], heldout.prompt_templates),
    )


def _captions(
    heldout: Collection,
    bank: CaptionBank,
    pair: tuple[int, int],
    images: np.ndarray,
    most: int,
    rng: np.random.Generator,
) -> _Texts:
    """Find the caption nearest to each image, and keep the images whose caption has an edited version."""
    source_texts, target_texts = (bank.vectors[k] for k in pair)
    version = np.full(len(bank.texts), -1)
    version[bank.origin[::-1]] = np.arange(len(bank.origin))[::-1]  # the first edited version of each caption
    read = nearest(images, source_texts, 1)[:, 0]
    editable = np.flatnonzero(version[read] >= 0)
    if not len(editable):
        raise InputError(
            f"Got no image of {heldout.name} whose nearest caption names a class to be replaced, among {len(images)} test images; expected at least one. "
            "Pass captions=… of these images, or other edits=…."
        )
    queries = np.sort(rng.choice(editable, min(most, len(editable)), replace=False))
    edited = version[read[queries]]
    return _Texts(
        (source_texts, target_texts),
        bank.texts,
        bank.labels,
        queries,
        read[queries],
        (bank.edited[pair[0]][edited], bank.edited[pair[1]][edited]),
        [bank.edited_texts[k] for k in edited],
        bank.wanted[edited],
    )


def _rest_kept(heldout: Collection, texts: _Texts, text: np.ndarray) -> dict[str, float]:
    """Return how much of the text apart from the class is preserved: the template, or the share of the caption's other words.

    ``after`` is the value for the gallery texts with indices ``text``, ``chance`` the expected value for a random text of the edited class.
    """
    if texts.templates is not None:
        edited, gallery = texts.templates
        labels = texts.gallery_labels
        same = [np.mean(gallery[labels == w] == t) for w, t in zip(texts.wanted, edited, strict=True)]
        return {"after": float(np.mean(gallery[text] == edited)), "chance": float(np.mean(same))}
    words = texts.gallery_words
    kept = shared_words(texts.edited_words, [words[k] for k in text], heldout.classes)
    by_chance = []
    for caption, wanted in zip(texts.edited_words, texts.wanted.tolist(), strict=True):
        others = [words[k] for k in np.flatnonzero(texts.gallery_labels == wanted)]
        by_chance.append(np.mean(shared_words([caption] * len(others), others, heldout.classes)) if others else np.nan)
    out = {"after": kept, "chance": np.array(by_chance)}
    return {quantity: float(np.nanmean(values)) for quantity, values in out.items() if not np.isnan(values).all()}
