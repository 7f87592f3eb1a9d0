"""``congruence migrate URL reembed``: encode the rows that the map is least sure of with the new model."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import typer

from congruence.cli._base import Bars, check_both, check_plot, say_error
from congruence.cli._options import Json, option, settable, with_groups
from congruence.cli.migrate._step import Journal, Step, opened
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from congruence.upgrade.migrate import Migration
    from congruence.upgrade.migrate.stages import Encode


@dataclass(frozen=True)
class ReembedOptions:
    """Which rows are re-embedded, and how; what is left out is as in the last call."""

    encode: str | None = option(
        None,
        "How to encode: a command with {ids} and {out}, a file of vectors with ids, or an encoder with --items.",
    )
    items: str | None = option(None, "With an encoder: table or folder of the items, as for embed, with the rows' ids.")
    texts: str | None = option(
        None, "Texts in the old model (a vocabulary, tags, queries), to choose what needs re-embedding most."
    )
    new_texts: str | None = option(None, "The same texts in the new model.")
    modality: str | None = option(None, "Modality of the rows to re-embed, if a column states it.")
    share: float | None = option(None, "Share of the rows to re-embed in total, e.g. .1; by default the certificate's.")
    budget: int | None = option(None, "Number of rows to re-embed in total, instead of --share.")
    until: float | None = option(
        None, "Stop when the whole 95 % interval of the agreement is above this value, e.g. .99."
    )


#: Options that later calls need not repeat.
_KEPT = ("encode", "items", "texts", "new_texts", "modality")


@with_groups
def command(
    ctx: typer.Context,
    *,
    options: ReembedOptions,
    settings: dict[str, Any] = settable(batch=1000, plot=str, encode_rate=float, price=float),
    journal: Journal = None,
    as_json: Json = False,
) -> None:
    """Encode the rows that the map is least sure of with the new model, refit the map, and map the other rows again.

    Example: congruence migrate library/photos.lance reembed --share .1 --encode library/new-photos.parquet

    Call it again to continue; rows that are encoded stay so. Settings: batch is the number of rows between two refits,
    plot a picture to write, and encode_rate (items per second) and price (of an item) compare the costs.
    """
    with opened(ctx, journal) as step:
        options = _complete(options, step)
        _check(options, settings)
        encode = open_encoder(options, step.migration)
        step.keep(**{f"reembed_{name}": getattr(options, name) for name in _KEPT})
        with Bars(as_json) as bars:
            result, lines = _reembed(step.migration, options, encode, bars, as_json, **settings)
        step.report("reembed", result, lines, as_json)


def _complete(options: ReembedOptions, step: Step) -> ReembedOptions:
    """Return the options with those of the last call, and the share that the certificate names."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    for name in _KEPT:
        values[name] = values[name] or step.kept.get(f"reembed_{name}")
    if options.share is options.budget is options.until is None and "share" in step.kept:
        values["share"] = float(step.kept["share"])
    return ReembedOptions(**values)


def _check(options: ReembedOptions, settings: dict[str, Any]) -> None:
    """Check the options before anything is read."""
    if options.encode is None:
        raise ParameterError(
            "Got no --encode, which says how to encode rows with the new model.",
            "Pass a command with {ids} and {out}, a file of vectors, or an encoder with --items.",
        )
    if options.budget is not None and options.share is not None:
        raise ParameterError(
            f"Got --budget {options.budget} and --share {options.share}; expected one of the two.", "Leave out one."
        )
    for name, value in {**vars(options), **settings}.items():
        if name in ("budget", "share", "until", "batch") and value is not None and not value > 0:
            raise ParameterError(argument=name, got=value, expected="a number above 0")
        if name in ("share", "until") and value is not None and value > 1:
            raise ParameterError(argument=name, got=value, expected="at most 1", fix=f"Pass --{name} .9.")
    if options.budget is None and options.share is None and options.until is None:
        raise ParameterError(
            "Got no --budget, --share or --until; expected one of them, which says when to stop.",
            "Pass --share .1, for example.",
        )
    check_both("--texts", "--new-texts", options.texts, options.new_texts)
    if "plot" in settings:
        check_plot(settings["plot"], force=False)


def open_encoder(options: ReembedOptions, migration: Migration) -> Encode:
    """Return the function that encodes rows, according to the form of ``--encode``."""
    from dataclasses import replace

    from congruence.embeddings import check_space
    from congruence.upgrade.migrate.encode import CommandEncoder, FileEncoder, ItemsEncoder

    spec = options.encode or ""
    if "{" in spec or " " in spec.strip():
        return CommandEncoder(spec)
    target, source = migration.mapper.map.target_space_, migration.mapper.map.source_space_
    if options.items is None and os.path.exists(spec.partition(":")[0]):
        from congruence.io import read_embeddings

        vectors = read_embeddings(spec)
        check_space(replace(vectors.space, normalized=None), target, source, modality=False)
        return FileEncoder(vectors)
    if options.items is None:
        raise ParameterError(
            f"Got --encode {spec}, which is neither a file nor a command with {{ids}} and {{out}}, and no --items.",
            "Pass --items with the table or folder of the items to encode.",
        )
    from congruence.embed import open_items
    from congruence.encoders import load_encoder

    items = open_items(options.items, modality=options.modality)
    encoder = load_encoder(spec, items.modality)
    check_space(replace(encoder.space, normalized=None), target, source, modality=False)
    return ItemsEncoder(encoder, items)


def _reembed(
    migration: Migration,
    options: ReembedOptions,
    encode: Encode,
    bars: Bars,
    as_json: bool,
    *,
    batch: int = 1000,
    plot: str | None = None,
    encode_rate: float | None = None,
    price: float | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Re-embed, print each stage, and return all stages and the forecast as plain data, and lines that describe it."""
    from congruence.io import read_embeddings
    from congruence.upgrade.migrate.stages import reembed

    texts, new_texts = (None if spec is None else read_embeddings(spec) for spec in (options.texts, options.new_texts))
    n_embedded = 0 if migration.mapper.native is None else len(migration.mapper.native.ids)
    total = options.budget or round((options.share or 1) * migration.info.rows)
    with bars.shown("encoding", max(total - n_embedded, 0)) as advance:
        done = reembed(
            migration,
            encode,
            texts=texts,
            new_texts=new_texts,
            among=options.modality,
            size=batch,
            budget=options.budget,
            share=options.share,
            until=options.until,
            callback=advance,
            stage=None if as_json else say_error,
        )
    result: dict[str, Any] = {"stages": [stage.to_dict() for stage in done.history_], "order": done.order_}
    lines = ["No rows were re-embedded."]
    if done.history_:
        forecast = done.forecast(rate=encode_rate and 60 * encode_rate, price=price)
        result["forecast"] = forecast.to_dict()
        lines = [f"{done.history_[-1]}", *str(forecast).split("\n")]
        if plot is not None:
            from congruence.report.pictures import write_figure

            write_figure(plot, done.plot(), "quality by the share re-embedded", force=True)
            result["plot"] = plot
    return {**result, "words": lines}, lines
