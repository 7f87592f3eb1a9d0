"""The JAM paper as a study: its data, metrics, baselines and kinds of figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from congruence_papers.jam.baselines import BASELINES
from congruence_papers.jam.controls import CONTROLS
from congruence_papers.jam.data import TASKS, JAMData
from congruence_papers.jam.features import open_features
from congruence_papers.jam.figures import KINDS
from congruence_papers.jam.metrics import METRICS
from congruence_papers.jam.protocol import paper_seeds
from congruence_papers.jam.sample_data import SAMPLE_DATA, open_sample
from congruence_papers.job import Config
from congruence_papers.study import Request, Study

__all__ = ["STUDY", "JAMStudy"]


_ENDS = Field(min_length=2, max_length=2, description="two numbers from 0 to 1", examples=[[0.5, 0.5]])

_WEIGHTS = Field(min_length=2, description="at least two nonnegative weights", examples=[[0.1, 1.0]])

_PAIRS = Field(min_length=1, description="numbers of pairs, each above 1", examples=[[32, 64]])

_WEIGHT = Annotated[float, Field(ge=0)]


class JAMStudy(Study[JAMData]):
    """Yoon, Yue and Kim (2025), "Escaping Plato's Cave"."""

    name = "jam"
    title = "JAM"
    configs = Path(__file__).parent / "configs"
    data_type = JAMData
    sample_data = SAMPLE_DATA
    metrics = METRICS
    baselines = BASELINES
    kinds = KINDS
    choices: Mapping[str, tuple[str, ...]] = {
        "tasks": TASKS,
        "controls": tuple(CONTROLS),
        "dual_methods": ("con", "negcon", "spread"),
    }
    types: Mapping[str, object] = {
        "spread_mix": Annotated[list[Annotated[float, Field(ge=0, le=1)]], _ENDS],
        "dual_encoders": list[str],
        "pairs": Annotated[list[Annotated[int, Field(ge=2)]], _PAIRS],
        "weights": Annotated[list[_WEIGHT | Annotated[list[_WEIGHT], Field(min_length=2, max_length=2)]], _WEIGHTS],
    }
    meanings: Mapping[str, str] = {
        "methods": "losses and baselines",
        "dual_encoders": "dual encoders measured for comparison",
        "dual_methods": "losses with which JAM is trained on the dual encoders' towers",
        "controls": "what replaces the images or captions",
        "weights": "reconstruction weights, each a constant, or the first and the last value of a linear schedule",
        "pairs": "numbers of pairs to train on",
        "tasks": "SugarCrepe's kinds of wrong caption",
        "train": "maximum number of training pairs; by default chosen for the data",
        "validation": "maximum number of validation pairs, by which the step is selected; by default chosen for the data",
        "test": "maximum number of test pairs; by default chosen for the data",
        "training": "parameters of JAM; by default chosen for the data",
        "spread_mix": "α of the Spread loss at the start and the end of its curriculum",
        "rows": "maximum number of images measured",
        "widths": "width of each encoder's embeddings, {encoder: width}",
    }
    drawings: Mapping[str, tuple[str, str]] = {
        "jam-fig2": ("a drawing of the method", "3"),
        "jam-fig3": ("a drawing of the Spread loss", "3.1"),
        "jam-table1": ("a glossary", "3.1"),
        "jam-table4": ("properties of the statistical measures, in words", "B.1"),
        "jam-table5": ("a glossary", "B.2"),
        "jam-table9": ("notation of two Spread losses", "C.3"),
        "jam-table10": ("terms of the Spread loss, in words", "C.3"),
        "jam-table11": ("sizes of the backbones, which are those of jam-table12", "D.1"),
    }

    def open_sample(self, name: str, variant: str | None, request: Request) -> JAMData:
        """Open synthetic scenes, SugarCrepe's captions or a file of features."""
        return open_sample(name, request.file, variant, cache=request.cache, log=request.log)

    def open_models(self, config: Config, models: str, request: Request) -> list[JAMData]:
        """Open the embeddings that ``congruence embed`` wrote."""
        dual_encoders = config.parameters.get("dual_encoders", [])
        device = request.options.get("device", "auto")
        return [
            open_features(
                config.models_named(models),
                request.file,
                request.root,
                config.variant,
                dual_encoders=dual_encoders,
                device=device,
            )
        ]

    def seeds(self, draws: int) -> list[int]:
        """Return the paper's seeds."""
        return paper_seeds(draws)

    def count(self, facts: Mapping[str, Any]) -> str:
        """Return the numbers of items and images."""
        items = ", ".join(f"{count} {task}" for task, count in facts["items"].items())
        return f"{items} items of {facts['distinct_images']} images, split 70–15–15 by image"


STUDY = JAMStudy()
