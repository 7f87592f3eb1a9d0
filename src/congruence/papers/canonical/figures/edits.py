"""Edits of a text in which only the class is changed (figures 55, 56)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from congruence.errors import InputError
from congruence.papers.canonical.anchors import both_rows, draw_anchors, fit_modality, fit_on, pair_name
from congruence.papers.canonical.baselines import ModalityMap
from congruence.papers.canonical.captions import CaptionBank, no_captions, shared_words
from congruence.papers.canonical.data import Collection, unit_rows
from congruence.papers.canonical.neighbors import item, nearest, usable
from congruence.papers.job import Job
from congruence.papers.plain import Example

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
        own, pictures = (side[test] for side in both_rows(heldout, pair, "image"))
        ids, labels = heldout.ids[test], heldout.labels[test]
        modality = fit_modality(job, collection, pair)
        what = {"data": heldout.name, "pair": pair_name(heldout, pair)}
        for seed in job.seeds:
            rng = np.random.default_rng([seed, 31])
            anchors = draw_anchors(job, collection, modality, job["share"], rng)
            mapping, _ = fit_on(job, collection, pair, modality, anchors, seed=seed)
            most = min(job["swaps"], 100) if job.quick else job["swaps"]
            texts = (
                _prompts(heldout, pair, own, most, rng)
                if heldout.bank is None
                else _captions(heldout, heldout.bank, pair, own, most, rng)
            )
            ours, theirs = texts.gallery
            text = nearest(unit_rows(mapping("text", texts.edited[0])), theirs, 1)[:, 0]
            direct = nearest(texts.edited[1], theirs, 1)[:, 0]
            found = nearest(theirs[text], pictures, 5)
            oracle = nearest(theirs[direct], pictures, 5)
            alone = nearest(ours[nearest(texts.edited[0], ours, 1)[:, 0]], own, 5)
            wanted = texts.wanted
            values = [
                ("edited_class_text", "mapped", np.mean(texts.gallery_labels[text] == wanted)),
                ("edited_class_text", "target alone", np.mean(texts.gallery_labels[direct] == wanted)),
                ("edited_class_image", "mapped", np.mean(labels[found[:, 0]] == wanted)),
                ("edited_class_image", "target alone", np.mean(labels[oracle[:, 0]] == wanted)),
                ("edited_class_image_at_5", "mapped", np.mean((labels[found] == wanted[:, None]).any(axis=1))),
                ("edited_class_image_at_5", "target alone", np.mean((labels[oracle] == wanted[:, None]).any(axis=1))),
                ("edited_class_image_at_5", "source alone", np.mean((labels[alone] == wanted[:, None]).any(axis=1))),
            ]
            for metric, series, value in values:
                job.results.add({**what, "series": series, "metric": metric, "quantity": "after"}, float(value))
            turned, _ = fit_on(job, collection, pair, modality, anchors, "random", seed=seed)
            job.results.add_all(what, _control(heldout, texts, turned, labels, pictures), "random_rotation")
            for quantity, kept in _rest(heldout, texts, text).items():
                line = {**what, "series": "mapped"} if quantity == "after" else what
                job.results.add({**line, "metric": "rest_kept", "quantity": quantity}, kept)
            job.tick()
        for q in range(min(job["examples"], len(texts.queries))):
            examples.append(
                {
                    "query": item(heldout, str(ids[texts.queries[q]])),
                    "read": texts.gallery_words[texts.read[q]] if texts.gallery_words else "",
                    "mapped_to": texts.edited_words[q] if texts.edited_words else "",
                    "rows": {"found": [item(heldout, str(ids[k])) for k in found[q]]},
                }
            )
    job.extra["examples"] = examples


def _control(
    heldout: Collection, texts: _Texts, turned: ModalityMap, labels: np.ndarray, pictures: np.ndarray
) -> dict[str, float]:
    """Return the scores of a random rotation about the correct means."""
    theirs, wanted = texts.gallery[1], texts.wanted
    text = nearest(unit_rows(turned("text", texts.edited[0])), theirs, 1)[:, 0]
    found = nearest(theirs[text], pictures, 5)
    return {
        "edited_class_text": float(np.mean(texts.gallery_labels[text] == wanted)),
        "edited_class_image": float(np.mean(labels[found[:, 0]] == wanted)),
        "edited_class_image_at_5": float(np.mean((labels[found] == wanted[:, None]).any(axis=1))),
        "rest_kept": _rest(heldout, texts, text)["after"],
    }


def _check_texts(job: Job[Collection], heldout: Collection) -> None:
    """Reject data with one template per class and no captions: an edit would leave nothing to preserve."""
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
    heldout: Collection, pair: tuple[int, int], own: np.ndarray, most: int, rng: np.random.Generator
) -> _Texts:
    """Find the class prompt nearest to each image, and replace its class by a random one."""
    ours, theirs = both_rows(heldout, pair, "text")
    queries = rng.choice(len(own), min(most, len(own)), replace=False)
    read = nearest(own[queries], ours, 1)[:, 0]
    edited = np.empty(len(read), dtype=int)
    for q, row in enumerate(read.tolist()):
        same = heldout.prompt_templates == heldout.prompt_templates[row]
        other = np.flatnonzero(same & (heldout.prompt_labels != heldout.prompt_labels[row]))
        edited[q] = rng.choice(other) if len(other) else row
    return _Texts(
        (ours, theirs),
        heldout.texts,
        heldout.prompt_labels,
        queries,
        read,
        (ours[edited], theirs[edited]),
        [heldout.texts[k] for k in edited] if heldout.texts else [],
        heldout.prompt_labels[edited],
        (heldout.prompt_templates[edited], heldout.prompt_templates),
    )


def _captions(
    heldout: Collection, bank: CaptionBank, pair: tuple[int, int], own: np.ndarray, most: int, rng: np.random.Generator
) -> _Texts:
    """Find the caption nearest to each image, and keep the images whose caption has an edited version."""
    ours, theirs = (bank.vectors[k] for k in pair)
    version = np.full(len(bank.texts), -1)
    version[bank.origin[::-1]] = np.arange(len(bank.origin))[::-1]  # the first edited version of each caption
    read = nearest(own, ours, 1)[:, 0]
    editable = np.flatnonzero(version[read] >= 0)
    if not len(editable):
        raise InputError(
            f"Got no image of {heldout.name} whose nearest caption names a class to be replaced, among {len(own)} test images; expected at least one. "
            "Pass captions=… of these images, or other edits=…."
        )
    queries = np.sort(rng.choice(editable, min(most, len(editable)), replace=False))
    edited = version[read[queries]]
    return _Texts(
        (ours, theirs),
        bank.texts,
        bank.labels,
        queries,
        read[queries],
        (bank.edited[pair[0]][edited], bank.edited[pair[1]][edited]),
        [bank.edited_texts[k] for k in edited],
        bank.wanted[edited],
    )


def _rest(heldout: Collection, texts: _Texts, text: np.ndarray) -> dict[str, float]:
    """Return how much of the text apart from the class is preserved: the template, or the share of the caption's other words.

    ``chance`` is the expected value for a random text of the edited class.
    """
    if texts.templates is not None:
        asked, every = texts.templates
        labels = texts.gallery_labels
        same = [np.mean(every[labels == w] == t) for w, t in zip(texts.wanted, asked, strict=True)]
        return {"after": float(np.mean(every[text] == asked)), "chance": float(np.mean(same))}
    words = texts.gallery_words
    kept = shared_words(texts.edited_words, [words[k] for k in text], heldout.classes)
    by_chance = []
    for own, wanted in zip(texts.edited_words, texts.wanted.tolist(), strict=True):
        others = [words[k] for k in np.flatnonzero(texts.gallery_labels == wanted)]
        by_chance.append(np.mean(shared_words([own] * len(others), others, heldout.classes)) if others else np.nan)
    out = {"after": kept, "chance": np.array(by_chance)}
    return {quantity: float(np.nanmean(values)) for quantity, values in out.items() if not np.isnan(values).all()}
