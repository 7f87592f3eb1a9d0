"""Sentences that have nothing to do with photos, for controls: Python's own manual, which is there wherever this library runs."""

from __future__ import annotations

import re

from congruence._utils.validation import check_positive

__all__ = ["unrelated_sentences"]

#: Words of a sentence: about as many as captions have.
_SHORTEST, _LONGEST = 6, 25


def unrelated_sentences(most: int = 1000) -> list[str]:
    """Return sentences of Python's language reference, in the order of the text.

    They differ a little from one version of Python to the next.

    Parameters
    ----------
    most : int, default=1000

    Returns
    -------
    list of str
        Distinct, without markup, of 6 to 25 words each.

    Raises
    ------
    ParameterError
        ``most`` is no positive integer.
    """
    from pydoc_data.topics import topics

    check_positive(most, "most", integer=True)
    found: dict[str, None] = {}
    for _, text in sorted(topics.items()):
        for paragraph in re.split(r"\n\s*\n", text):
            if paragraph.startswith("   ") or "::=" in paragraph:  # code, or grammar
                continue
            for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
                plain = re.sub(r"[*`“”\"]", "", sentence)
                if _SHORTEST <= len(plain.split()) <= _LONGEST and re.fullmatch(r"[A-Z][\w ,;’'()\-]+\.", plain):
                    found.setdefault(plain)
    return list(found)[:most]
