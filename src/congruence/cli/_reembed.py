"""Progressive re-embedding in ``migrate``: the encoder, the output at each stage, and the forecast at the end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.cli._bars import Bars
    from congruence.upgrade.migrate import Migration
    from congruence.upgrade.migrate.stages import Encode
    from congruence.upgrade.progressive import Progressive

__all__ = ["ReembedOptions", "open_encoder", "progress", "run_reembed"]


@dataclass(frozen=True)
class ReembedOptions:
    """Options of the command."""

    encode: str | None
    items: str | None
    texts: str | None
    new_texts: str | None
    among: str | None
    batch: int
    budget: int | None
    share: float | None
    until: float | None
    plot: str | None
    encode_rate: float | None
    price: float | None
    force: bool = False

    def check(self) -> None:
        """Refuse invalid options before anything is read. Raises ParameterError, OutputExistsError."""
        from congruence._utils.atomic import check_output
        from congruence.errors import ParameterError
        from congruence.report.pictures import check_suffix

        if self.encode is None:
            raise ParameterError(
                "Got no --encode; expected a way to encode rows with the new model. Pass a command with {ids} and {out}, a file of vectors, or an encoder with --items."
            )
        if self.budget is not None and self.share is not None:
            raise ParameterError(
                f"Got --budget {self.budget} and --share {self.share}; expected one of the two. Leave out one."
            )
        for name, value in (
            ("--budget", self.budget),
            ("--share", self.share),
            ("--until", self.until),
            ("--batch", self.batch),
        ):
            if value is not None and not value > 0:
                raise ParameterError(
                    f"Got {name} {value}; expected a number above 0. Pass such a number, or leave out {name}."
                )
        for name, value in (("--share", self.share), ("--until", self.until)):
            if value is not None and value > 1:
                raise ParameterError(f"Got {name} {value:g}; expected at most 1. Pass {name} .9, for example.")
        if self.budget is None and self.share is None and self.until is None:
            raise ParameterError(
                "Got no --budget, --share or --until; expected one of them, which says when to stop. Pass --share .1, for example."
            )
        if (self.texts is None) != (self.new_texts is None):
            raise ParameterError(
                "Got texts of one model only; expected the same texts encoded by both. Pass --texts and --new-texts, or neither."
            )
        if self.plot is not None:
            check_suffix(self.plot)
            check_output(self.plot, force=self.force)


def open_encoder(wanted: ReembedOptions, migration: Migration) -> Encode:
    """Return the function that encodes rows, according to the form of ``--encode``.

    Raises
    ------
    ParameterError
        If ``--encode`` has none of the three forms.
    SpaceMismatchError
        If the encoder or the file belongs to another model than the map's target.
    """
    from congruence.embeddings import check_space
    from congruence.errors import ParameterError
    from congruence.upgrade.migrate.encode import CommandEncoder, FileEncoder, ItemsEncoder

    spec = wanted.encode or ""
    if "{" in spec or " " in spec.strip():
        return CommandEncoder(spec)
    from dataclasses import replace

    target, source = migration.mapper.map.target_space_, migration.mapper.map.source_space_
    if wanted.items is None and os.path.exists(spec.partition(":")[0]):
        from congruence.stores import read_embeddings

        found = read_embeddings(spec)
        check_space(replace(found.space, normalized=None), target, source, modality=False)
        return FileEncoder(found)
    if wanted.items is None:
        raise ParameterError(
            f"Got --encode {spec}, which is neither a file nor a command with {{ids}} and {{out}}, and no --items; expected --items with an encoder. Pass --items with the table or folder of the items to encode."
        )
    from congruence.embed import open_items
    from congruence.encoders import load_encoder

    items = open_items(wanted.items, modality=wanted.among)
    encoder = load_encoder(spec, items.modality)
    check_space(replace(encoder.space, normalized=None), target, source, modality=False)
    return ItemsEncoder(encoder, items)


def progress(migration: Migration, wanted: ReembedOptions, bars: Bars, as_json: bool) -> dict[str, object]:
    """Switch and re-embed; if the new vectors are a complete file, re-embed, verify and switch instead. Return the report as plain data."""
    from congruence.cli._base import say

    first = migration.database.capabilities.writes_after_switch
    result = {} if first else run_reembed(migration, wanted, bars, as_json)
    if not first:
        bars.begin("verifying", migration.info.rows)
        found = migration.verify(callback=bars.advance)
        result |= found.to_dict()
        if not found.passed:
            bars.close()
            return result
    bars.begin("comparing", migration.info.rows)
    migration.switch(callback=bars.advance)
    bars.close()
    if not as_json:
        more = "mapped vectors, and re-embedded ones as soon as they are written" if first else "the new vectors"
        say(f"switched: readers see {more}")
    return run_reembed(migration, wanted, bars, as_json) if first else result


def run_reembed(migration: Migration, wanted: ReembedOptions, bars: Bars, as_json: bool) -> dict[str, object]:
    """Re-embed, print each stage, and return the final report as plain data."""
    from congruence.cli._base import say
    from congruence.stores import read_embeddings
    from congruence.upgrade.migrate.stages import reembed

    texts, new_texts = (None if one is None else read_embeddings(one) for one in (wanted.texts, wanted.new_texts))
    encode = open_encoder(wanted, migration)
    done = 0 if migration.mapper.native is None else len(migration.mapper.native.ids)
    total = max((wanted.budget or round((wanted.share or 1) * migration.info.rows)) - done, 0)
    with bars.shown("encoding", total) as advance:
        plan = reembed(
            migration,
            encode,
            texts=texts,
            new_texts=new_texts,
            among=wanted.among,
            size=wanted.batch,
            budget=wanted.budget,
            share=wanted.share,
            until=wanted.until,
            callback=advance,
            stage=None if as_json else say,
        )
    result, words = _plan_facts(plan, wanted)
    if wanted.plot is not None and plan.history_:
        from congruence.report.pictures import write_figure

        figure = plan.plot().get_figure(root=True)
        assert figure is not None
        write_figure(wanted.plot, figure, "quality by the share re-embedded", force=True)
        result["plot"] = wanted.plot
    if not as_json:
        for line in words:
            say(line)
    return result


def _plan_facts(plan: Progressive, wanted: ReembedOptions) -> tuple[dict[str, object], list[str]]:
    """Return the last stage and the forecast as plain data, and both as text."""
    words: list[str] = []
    result: dict[str, object] = {
        "stages": [one.to_dict() for one in plan.history_],
        "order": plan.order_,
        "words": words,
    }
    if not plan.history_:
        words.append("no rows were re-embedded")
        return result, words
    minutes = None if wanted.encode_rate is None else 60 * wanted.encode_rate
    ahead = plan.forecast(rate=minutes, price=wanted.price)
    result["forecast"] = ahead.to_dict()
    words += str(ahead).split("\n")
    return result, words
