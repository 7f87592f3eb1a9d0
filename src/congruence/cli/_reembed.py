"""Progressive re-embedding in ``migrate``: its options, the encoder, the output at each stage, and the forecast at the
end.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.cli._bars import Bars
    from congruence.upgrade.migrate import Migration
    from congruence.upgrade.migrate.stages import Encode
    from congruence.upgrade.progressive import Progressive

__all__ = ["ReembedOptions", "open_encoder", "run_progressive", "run_reembed"]


@dataclass(frozen=True)
class ReembedOptions:
    """Options of ``migrate`` for re-embedding."""

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

    def check(self) -> None:
        """Check the options before anything is read.

        Raises
        ------
        ParameterError
            If an option is missing, outside of its range, or contradicts another one.
        OutputExistsError, FileError, StorageError
            If the file of the plot exists or cannot be written.
        """
        from congruence._utils.atomic import check_output
        from congruence.errors import ParameterError
        from congruence.report.pictures import check_suffix

        if self.encode is None:
            raise ParameterError(
                "Got no --encode; expected a way to encode rows with the new model. Pass a command with {ids} "
                "and {out}, a file of vectors, or an encoder with --items."
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
                "Got no --budget, --share or --until; expected one of them, which says when to stop. Pass "
                "--share .1, for example."
            )
        if (self.texts is None) != (self.new_texts is None):
            raise ParameterError(
                "Got texts of one model only; expected the same texts encoded by both. Pass --texts and "
                "--new-texts, or neither."
            )
        if self.plot is not None:
            check_suffix(self.plot)
            check_output(self.plot)


def open_encoder(options: ReembedOptions, migration: Migration) -> Encode:
    """Return the function that encodes rows, according to the form of ``--encode``.

    Raises
    ------
    ParameterError
        If ``--encode`` is none of a command, a file, and an encoder with ``--items``.
    SpaceMismatchError
        If the encoder or the file belongs to another model than the map's target.
    """
    from congruence.embeddings import check_space
    from congruence.errors import ParameterError
    from congruence.upgrade.migrate.encode import CommandEncoder, FileEncoder, ItemsEncoder

    spec = options.encode or ""
    if "{" in spec or " " in spec.strip():
        return CommandEncoder(spec)
    from dataclasses import replace

    target, source = migration.mapper.map.target_space_, migration.mapper.map.source_space_
    if options.items is None and os.path.exists(spec.partition(":")[0]):
        from congruence.stores import read_embeddings

        vectors = read_embeddings(spec)
        check_space(replace(vectors.space, normalized=None), target, source, modality=False)
        return FileEncoder(vectors)
    if options.items is None:
        raise ParameterError(
            f"Got --encode {spec}, which is neither a file nor a command with {{ids}} and {{out}}, and no "
            "--items; expected --items with an encoder. Pass --items with the table or folder of the items to "
            "encode."
        )
    from congruence.embed import open_items
    from congruence.encoders import load_encoder

    items = open_items(options.items, modality=options.among)
    encoder = load_encoder(spec, items.modality)
    check_space(replace(encoder.space, normalized=None), target, source, modality=False)
    return ItemsEncoder(encoder, items)


def run_progressive(migration: Migration, options: ReembedOptions, bars: Bars, as_json: bool) -> dict[str, object]:
    """Switch and re-embed, and return the report as plain data; if a switch takes complete files only, re-embed and
    verify before it.
    """
    from congruence.cli._base import say

    switches_first = migration.database.capabilities.writes_after_switch
    result: dict[str, object] = {}
    if not switches_first:
        result = run_reembed(migration, options, bars, as_json)
        bars.begin("verifying", migration.info.rows)
        verification = migration.verify(callback=bars.advance)
        result |= verification.to_dict()
        if not verification.passed:
            bars.close()
            return result
    bars.begin("comparing", migration.info.rows)
    migration.switch(callback=bars.advance)
    bars.close()
    if not as_json:
        seen = "mapped vectors, and re-embedded ones once they are written" if switches_first else "the new vectors"
        say(f"switched: readers see {seen}")
    return run_reembed(migration, options, bars, as_json) if switches_first else result


def run_reembed(migration: Migration, options: ReembedOptions, bars: Bars, as_json: bool) -> dict[str, object]:
    """Re-embed, print each stage, and return the final report as plain data."""
    from congruence.cli._base import say
    from congruence.stores import read_embeddings
    from congruence.upgrade.migrate.stages import reembed

    texts, new_texts = (None if spec is None else read_embeddings(spec) for spec in (options.texts, options.new_texts))
    encode = open_encoder(options, migration)
    n_embedded = 0 if migration.mapper.native is None else len(migration.mapper.native.ids)
    total = options.budget or round((options.share or 1) * migration.info.rows)
    with bars.shown("encoding", max(total - n_embedded, 0)) as advance:
        plan = reembed(
            migration,
            encode,
            texts=texts,
            new_texts=new_texts,
            among=options.among,
            size=options.batch,
            budget=options.budget,
            share=options.share,
            until=options.until,
            callback=advance,
            stage=None if as_json else say,
        )
    result, lines = _plan_facts(plan, options)
    if options.plot is not None and plan.history_:
        from congruence.report.pictures import write_figure

        figure = plan.plot().get_figure(root=True)
        assert figure is not None
        write_figure(options.plot, figure, "quality by the share re-embedded", force=True)
        result["plot"] = options.plot
    if not as_json:
        for line in lines:
            say(line)
    return result


def _plan_facts(plan: Progressive, options: ReembedOptions) -> tuple[dict[str, object], list[str]]:
    """Return all stages and the forecast as plain data, and the forecast as lines of text."""
    lines: list[str] = []
    result: dict[str, object] = {
        "stages": [stage.to_dict() for stage in plan.history_],
        "order": plan.order_,
        "words": lines,
    }
    if not plan.history_:
        lines.append("no rows were re-embedded")
        return result, lines
    per_minute = None if options.encode_rate is None else 60 * options.encode_rate
    forecast = plan.forecast(rate=per_minute, price=options.price)
    result["forecast"] = forecast.to_dict()
    lines += str(forecast).split("\n")
    return result, lines
