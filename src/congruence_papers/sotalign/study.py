"""The SOTAlign paper as a study: its data, metrics, baselines and kinds of figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from congruence.errors import ParameterError
from congruence_papers.job import Config
from congruence_papers.sotalign.baselines import BASELINES
from congruence_papers.sotalign.data import SOTAlignData
from congruence_papers.sotalign.features import open_features
from congruence_papers.sotalign.figures import KINDS
from congruence_papers.sotalign.metrics import METRICS
from congruence_papers.sotalign.sample_data import SAMPLE_DATA, open_sample
from congruence_papers.study import Request, Study

__all__ = ["STUDY", "SOTAlignStudy"]


class SOTAlignStudy(Study[SOTAlignData]):
    """Roschmann et al. (2026), "SOTAlign"."""

    name = "sotalign"
    title = "SOTAlign"
    configs = Path(__file__).parent / "configs"
    data_type = SOTAlignData
    sample_data = SAMPLE_DATA
    metrics = METRICS
    baselines = BASELINES
    kinds = KINDS
    choices: Mapping[str, tuple[str, ...]] = {
        "teachers": ("procrustes", "cca", "contrastive"),
        "divergences": ("none", "cka", "infonce", "klot"),
        "over": ("pairs", "unpaired"),
        "vary": ("both", "images", "texts"),
    }
    types: Mapping[str, Any] = {
        "overlap": Annotated[float, Field(ge=0, le=1, description="a share from 0 to 1", examples=[0.0])] | None
    }
    meanings: Mapping[str, str] = {
        "methods": "SOTAlign and the methods it is compared with",
        "teachers": "linear teachers",
        "divergences": "divergences between teacher and student",
        "over": "what the sweep varies",
        "vary": "which side's unpaired rows come from other sources",
        "pairs": "pairs to train on; by default chosen for the data",
        "unpaired": "maximum number of unpaired rows of each side; by default chosen for the data",
        "pairs_sweep": "numbers of pairs, if the sweep varies them",
        "unpaired_sweep": "numbers of unpaired rows, if the sweep varies them",
        "overlap": "share of each side's unpaired items that are also among the other side's; null draws each side from all remaining rows",
        "validation": "number of validation images; by default chosen for the data",
        "test": "number of test images; by default chosen for the data",
        "training": "parameters of the trained methods; by default chosen for the data",
        "tune": "choose each method's parameters on separate splits, instead of using the first combination",
        "scatter": "plot retrieval against the distance or agreement of the data, instead of a table",
    }
    drawings: Mapping[str, tuple[str, str]] = {
        "sotalign-fig1": ("a drawing of the task", "1"),
        "sotalign-fig2": ("a drawing of the method", "3"),
        "sotalign-fig3": ("memory of the gradient of KLOT: benchmarks/bench_klot.py", "5"),
        "sotalign-fig6": ("memory and time of the gradient of KLOT: benchmarks/bench_klot.py", "B.1"),
    }

    def open_sample(self, name: str, variant: str | None, request: Request) -> SOTAlignData:
        """Open synthetic rows or a file of features."""
        return open_sample(name, request.file, variant)

    def open_models(self, config: Config, models: str, request: Request) -> list[SOTAlignData]:
        """Open embeddings supplied by the user, from any encoders or from the paper's."""
        if request.file is None:
            return super().open_models(config, models, request)
        if request.data:
            raise ParameterError(
                f"Got data {', '.join(request.data)} for the embeddings in {request.file}; expected none. Leave out data=…."
            )
        named = config.models if models == "paper" else models.split(",")
        device = request.options.get("device", "auto")
        return [open_features(named, request.file, variant=config.variant, device=device)]

    def count(self, facts: Mapping[str, Any]) -> str:
        """Return the numbers of images, texts and labels."""
        images, texts = ({rows[0] for rows in facts[side].values()} for side in ("images", "texts"))
        return f"{max(images)} images, {max(texts)} texts, {facts['labels']} labels, split anew for each draw"


STUDY = SOTAlignStudy()
