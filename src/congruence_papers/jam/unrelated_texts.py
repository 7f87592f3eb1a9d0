"""Sentences unrelated to photos, for controls: from the manual included with Python, so no download is needed."""

from __future__ import annotations

import re

from congruence._utils.validation import check_positive

__all__ = ["unrelated_sentences"]

#: Minimum and maximum number of words of a sentence, similar to captions.
_SHORTEST, _LONGEST = 6, 25


def unrelated_sentences(most: int = 1000) -> list[str]:
    """Return sentences of Python's language reference, in the order of the text.

    The sentences differ slightly between versions of Python.

    Parameters
    ----------
    most : int, default=1000
        Maximum number of sentences.

    Returns
    -------
    list of str
        Distinct sentences of 6 to 25 words, without markup.

    Raises
    ------
    ParameterError
        If ``most`` is not a positive integer.
    """
    from pydoc_data.topics import topics

    check_positive(most, "most", integer=True)
    sentences: dict[str, None] = {}
    for _, text in sorted(topics.items()):
        for paragraph in re.split(r"\n\s*\n", text):
            if paragraph.startswith("   ") or "::=" in paragraph:  # code, or grammar
                continue
            for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
                plain = re.sub(r"[*`“”\"]", "", sentence)
                if _SHORTEST <= len(plain.split()) <= _LONGEST and re.fullmatch(r"[A-Z][\w ,;’'()\-]+\.", plain):
                    sentences.setdefault(plain)
    return list(sentences)[:most]
