"""Save and load frames: the format of maps, with a table of models and one of items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from congruence import persist
from congruence._utils.display import as_markdown
from congruence.embeddings import MODALITIES, Space
from congruence.errors import CorruptFileError
from congruence.maps._base import Map
from congruence.maps._frame_model import Consensus, FrameModel
from congruence.persist import TOLERANCE, check_parameters, count


class SavedFrame(ABC):
    """Base of :class:`congruence.CanonicalFrame`: the components of a fitted frame, and its folder."""

    kind: ClassVar[str] = "frame"
    get_params, set_params, __repr__ = Map.get_params, Map.set_params, Map.__repr__
    models_: dict[str, FrameModel]
    consensus_: dict[str, Consensus]
    axes_: list[str]
    objective_: np.ndarray
    n_iter_: int
    converged_: bool

    @abstractmethod
    def _check_parameters(self) -> None:
        """Check that the parameters are valid for a frame."""

    @abstractmethod
    def check_fitted(self) -> None:
        """Raise NotFittedMapError if the frame is not fitted."""

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the frame as a folder: ``model.safetensors``, ``config.json``, ``README.md``.

        Parameters
        ----------
        path : path-like
        force : bool, default=False
            Replace an existing frame or map.

        Returns
        -------
        Path

        Raises
        ------
        NotFittedMapError, OutputExistsError, StorageError
            If the frame is not fitted, the output already exists, or the output cannot be written.
        """
        self.check_fitted()
        arrays: dict[str, np.ndarray] = {"objective": self.objective_}
        models, items = [], []
        for m, (name, model) in enumerate(self.models_.items()):
            arrays[f"rotation.{m}"] = model.rotation
            arrays |= {f"mean.{m}.{q}": mean for q, mean in model.means.items()}
            models.append(
                {
                    "name": name,
                    "space": model.space.to_dict(),
                    "means_from": model.means_from,
                    "n_anchors": model.n_anchors,
                    "rank": model.rank,
                }
            )
        for q, consensus in self.consensus_.items():
            # Ids are stored as arrays, because the size of the JSON file is limited: the concatenated texts, and the end of each.
            texts = [text.encode("utf-8") for text in consensus.ids.tolist()]
            arrays[f"ids.{q}"] = np.frombuffer(b"".join(texts), dtype=np.uint8)
            arrays[f"ends.{q}"] = np.cumsum([len(text) for text in texts], dtype=np.int64)
            arrays[f"items.{q}"] = consensus.vectors
            arrays[f"center.{q}"] = consensus.center
            items.append({"modality": q, "has_ids": consensus.has_ids})
        facts = {
            "models": models,
            "items": items,
            "axes": self.axes_,
            "n_iter": self.n_iter_,
            "converged": self.converged_,
        }
        config = {"kind": self.kind, "parameters": self.get_params(deep=False), "facts": facts, "scores": {}}
        return persist.write_folder(path, arrays, config, _card(self), force=force)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a frame saved with :meth:`save`. Nothing in the folder is executed.

        Raises
        ------
        FileError, CorruptFileError, VersionError
            If a file cannot be read; a file is damaged; or a file was written by a newer version.
        """
        arrays, config = persist.read_folder(path)
        if config.get("kind") != cls.kind:
            raise CorruptFileError(
                f"Got a map of kind {config.get('kind')!r} in {path}; expected a frame. Load it with congruence.load."
            )
        try:
            return cls._restored(arrays, config)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise CorruptFileError(
                f"Got a saved frame in {path} with parts missing or damaged ({error!r}); expected a complete one. Fit it again."
            ) from error

    def describe(self) -> dict[str, Any]:
        """Return what is known about the frame as plain data."""
        self.check_fitted()
        models = {
            name: {
                "space": model.space.to_dict(),
                "anchors": model.n_anchors,
                "directions_covered": model.rank,
                "means_from": model.means_from,
            }
            for name, model in self.models_.items()
        }
        return {
            "models": models,
            "items": {q: len(consensus.ids) for q, consensus in self.consensus_.items()},
            "alignment": float(self.objective_[-1]),
            "n_iter": self.n_iter_,
            "converged": self.converged_,
        }

    @classmethod
    def _restored(cls, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Self:
        check_parameters(cls, config["parameters"])
        frame, facts = cls(**config["parameters"]), config["facts"]
        frame._check_parameters()
        frame.axes_ = [_modality(q) for q in facts["axes"]]
        frame.objective_, frame.converged_ = arrays["objective"], facts["converged"]
        frame.n_iter_ = count(facts, "n_iter")
        frame.models_, frame.consensus_ = {}, {}
        expected = {"objective"}
        for entry in facts["items"]:
            q = _modality(entry["modality"])
            names = [f"{part}.{q}" for part in ("ids", "ends", "items", "center")]
            text, ends, vectors, center = (arrays[name] for name in names)
            expected |= set(names)
            if (
                text.dtype != np.uint8
                or ends.dtype != np.int64
                or vectors.dtype != np.float32
                or type(entry["has_ids"]) is not bool
            ):
                raise TypeError("items of the wrong type")
            if (
                len(ends) != len(vectors)
                or (np.diff(ends, prepend=0) < 0).any()
                or (len(ends) and ends[-1] != len(text))
            ):
                raise ValueError("ids that do not match the items")
            raw = text.tobytes()
            ids = np.empty(len(ends), dtype=object)
            ids[:] = [raw[a:b].decode("utf-8") for a, b in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]
            if len(set(ids.tolist())) < len(ids):
                raise ValueError("repeated ids")
            frame.consensus_[q] = Consensus(ids, vectors, entry["has_ids"], _finite(center, 1))
        consensuses = frame.consensus_.values()
        widths = {consensus.vectors.shape[1] for consensus in consensuses} | {
            len(consensus.center) for consensus in consensuses
        }
        if len(widths) != 1 or not all(np.isfinite(consensus.vectors).all() for consensus in consensuses):
            raise ValueError("items of several widths, or with NaN")
        (k,) = widths
        for m, entry in enumerate(facts["models"]):
            means_from = {_modality(q): origin for q, origin in entry["means_from"].items()}
            if not set(means_from.values()) <= {"items", "rows", "frame"} or not set(means_from) <= set(
                frame.consensus_
            ):
                raise ValueError("means of unknown origin")
            rotation = _finite(arrays[f"rotation.{m}"], 2)
            means = {q: _finite(arrays[f"mean.{m}.{q}"], 1) for q in means_from}
            expected |= {f"rotation.{m}"} | {f"mean.{m}.{q}" for q in means}
            if rotation.shape[1] != k + len(frame.axes_) or any(len(mean) != len(rotation) for mean in means.values()):
                raise ValueError("a rotation and means that do not fit")
            if np.linalg.norm(rotation, 2) > 1 + TOLERANCE:
                raise ValueError("a rotation that increases norms")
            space = Space.from_dict(entry["space"])
            if (
                space.dim not in (None, len(rotation))
                or type(entry["name"]) is not str
                or entry["name"] in frame.models_
            ):
                raise ValueError("a model whose space or name does not fit")
            rank = count(entry, "rank", most=min(len(rotation), k))
            frame.models_[entry["name"]] = FrameModel(
                space, rotation, means, means_from, k, count(entry, "n_anchors"), rank
            )
        if set(arrays) != expected or len(frame.models_) < 2 or type(frame.converged_) is not bool:
            raise ValueError("missing or unexpected arrays, or fewer than two models")
        if len(_finite(frame.objective_, 1)) != frame.n_iter_ + 1:
            raise ValueError("an objective that does not match the number of sweeps")
        return frame


def _card(frame: SavedFrame) -> str:
    lines = [
        "---",
        "library_name: congruence",
        "tags: [congruence, embeddings, alignment, procrustes]",
        "---",
        f"# CanonicalFrame: {len(frame.models_)} models",
        "",
        "```python",
        "from congruence import CanonicalFrame",
        "",
        'frame = CanonicalFrame.load("path/to/this/folder")',
        "mapping = frame.map(source, target)",
        "```",
        "",
        "| model | space | anchors | directions that the anchors cover |",
        "| --- | --- | --- | --- |",
    ]
    for name, model in frame.models_.items():
        cells = [as_markdown(name), as_markdown(str(model.space)), str(model.n_anchors), str(model.rank)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _modality(name: object) -> str:
    if name != "" and name not in MODALITIES:
        raise ValueError("an unknown modality")
    return str(name)


def _finite(array: np.ndarray, axes: int) -> np.ndarray:
    if array.dtype != np.float64 or array.ndim != axes or not array.size or not np.isfinite(array).all():
        raise ValueError("an array of the wrong type or shape, or with NaN")
    return array
