"""The Canonical paper as a study: its data, metrics, baselines and kinds of figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from congruence.errors import ParameterError
from congruence_papers.canonical.baselines import BASELINES
from congruence_papers.canonical.captions import no_captions
from congruence_papers.canonical.data import Collection
from congruence_papers.canonical.figures import KINDS
from congruence_papers.canonical.metrics import METRICS
from congruence_papers.canonical.models import open_models
from congruence_papers.canonical.sample_data import SAMPLE_DATA, open_sample
from congruence_papers.image_sets import DATASETS
from congruence_papers.job import Config
from congruence_papers.study import Request, Study

__all__ = ["STUDY", "CanonicalStudy"]


_SHARE = Field(gt=0, le=1, description="a share above 0 and up to 1", examples=[0.5])


class CanonicalStudy(Study[Collection]):
    """Gupta et al. (2026), "Canonicalizing Multimodal Contrastive Representation Learning"."""

    name = "canonical"
    title = "the Canonical paper"
    configs = Path(__file__).parent / "configs"
    data_type = Collection
    sample_data = SAMPLE_DATA
    metrics = METRICS
    baselines = BASELINES
    kinds = KINDS
    choices: Mapping[str, tuple[str, ...]] = {
        "fit": ("image", "text"),
        "means": ("seen", "all", "evaluated", "fitted"),
        "fit_templates": ("all", "single"),
        "evaluation_templates": ("all", "single"),
    }
    types: Mapping[str, object] = {"share": Annotated[float, _SHARE], "edits": dict[str, str]}
    meanings: Mapping[str, str] = {
        "fit": "modality that maps are fitted on; the other one if a model lacks it",
        "methods": "methods to fit maps with",
        "share": "share of the training images used in each draw",
        "classes": "numbers of classes to fit on; some data sets define their own",
        "means": "means that a map exchanges: those of the classes fitted on or of all classes; in a transfer, those of the data evaluated on or fitted on",
        "fit_templates": "prompts used by a fit on text: all templates of a class, or the first",
        "evaluation_templates": "prompts averaged into the class prototypes for evaluation: all templates, or the first",
        "steps": "number of translations between the open and the closed modality gap",
        "points": "number of rows to plot",
        "examples": "number of examples to show",
        "swaps": "maximum number of texts to edit",
        "captions": "path of a file of captions, relative to this file",
        "edits": "class names to replace in captions, {before: after}",
    }
    drawings: Mapping[str, tuple[str, str]] = {
        "fig8": ("a diagram of how the theorems depend on each other", "C"),
    }

    def open_sample(self, name: str, variant: str | None, request: Request) -> Collection:
        """Open the emoji sample or a file of features."""
        return open_sample(name, request.file, variant)

    def open_models(self, config: Config, models: str, request: Request) -> list[Collection]:
        """Embed every data set with every group of models, or load the embeddings from the cache."""
        named = config.models_named(models)
        sets = list(request.data or config.data)
        if not named or not sets:
            raise ParameterError(
                f"Got {config.name} without models or data sets in its configuration; expected both. Pass models=… and data=…."
            )
        if request.root is None:
            raise ParameterError(
                f"Got no folder of data sets for {', '.join(sets)}; expected one. Pass root=… (or models='sample')."
            )
        options = {**request.options, "log": request.log}
        captions = config.parameters.get("captions")
        if captions:
            options |= {"captions": captions, "edits": config.parameters["edits"]}
        elif config.kind == "edits":
            for name in sets:  # fail before hours of embedding, not after
                if name in DATASETS and len(DATASETS[name].templates) == 1:
                    raise no_captions(name, config.name)
        cache = Path(request.root).expanduser() / "embeddings" if request.cache is None else request.cache
        return [open_models(spec, name, root=request.root, cache=cache, **options) for spec in named for name in sets]

    def configure(self, config: Config, data: Collection) -> Collection:
        """Return the data with the evaluation templates of the configuration."""
        return replace(data, evaluation_templates=config.parameters.get("evaluation_templates", "all"))

    def count(self, facts: Mapping[str, object]) -> str:
        """Return the numbers of classes, images and templates."""
        single = facts["evaluation_templates"] == "single"
        return (
            f"{facts['classes']} classes; {facts['train_images']} images to fit on, {facts['test_images']} to measure on; {facts['templates']} "
            f"templates a class{', the first of them measured' if single else ''}"
        )


STUDY = CanonicalStudy()
