"""JAM as a study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from congruence.papers.jam.baselines import BASELINES
from congruence.papers.jam.controls import CONTROLS
from congruence.papers.jam.data import TASKS, JAMData
from congruence.papers.jam.features import open_features
from congruence.papers.jam.figures import KINDS
from congruence.papers.jam.metrics import METRICS
from congruence.papers.jam.protocol import paper_seeds
from congruence.papers.jam.sample_data import SAMPLE_DATA, open_sample
from congruence.papers.job import Config
from congruence.papers.study import Request, Study

__all__ = ["STUDY", "JAMStudy"]


_ENDS = Field(min_length=2, max_length=2, description="two numbers from 0 to 1", examples=[[0.5, 0.5]])

_WEIGHTS = Field(min_length=2, description="two weights from 0 on, or more", examples=[[0.1, 1.0]])

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
        "dual_encoders": "dual encoders measured beside them",
        "dual_methods": "losses whose heads are trained on the dual encoders' towers",
        "controls": "what is put in place of images or captions",
        "weights": "weights of the reconstruction, each kept from the first step to the last, or two: the first and the last of a linear schedule",
        "pairs": "numbers of pairs to train on",
        "tasks": "SugarCrepe's kinds of wrong caption",
        "train": "pairs to train on; as many as suit the data if left out",
        "validation": "pairs to choose the step by; as many as suit the data if left out",
        "test": "pairs to measure on; as many as suit the data if left out",
        "training": "parameters of JAM in place of those that suit the data",
        "spread_mix": "α of the Spread loss where its curriculum begins and ends",
        "rows": "most images measured",
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
        """Open made-up scenes, SugarCrepe's captions or a file of features."""
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
        return f"{items} items of {facts['distinct_images']} images, divided 70–15–15 by image"


STUDY = JAMStudy()
