"""sentence-transformers (extra ``sentence-transformers``): a map appended to a model. The import loads torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from congruence._utils.display import as_markdown, short
from congruence._utils.optional import require
from congruence._utils.typing import Layer
from congruence.errors import FileError, ParameterError, ShapeError
from congruence.integrations._maps import as_map
from congruence.integrations.model_folder import check_model_output, model_folder
from congruence.maps import Map, load

library = require("sentence_transformers", extra="sentence-transformers")
torch = require("torch", extra="sentence-transformers")
try:
    from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Module, Normalize
except ModuleNotFoundError:  # before version 6
    from sentence_transformers.models import Dense, LayerNorm, Module, Normalize

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor, nn

    from congruence.upgrade.bridge import Bridge


ACTIVATIONS = {"gelu": "GELU", "relu": "ReLU", "silu": "SiLU"}  # layers that a Dense module can end with


class MapModule(Module):
    """A map of any kind as a module: maps the sentence embedding and leaves everything else unchanged.

    Its weights are fixed. sentence-transformers 6 loads modules of other packages only with ``trust_remote_code=True``,
    even from local folders; most maps do not need such a module (``to_modules``).

    ``mapping`` is fitted on the vectors of the model that the module is appended to; the other parameters are as for
    ``congruence.integrations.to_onnx``, with the modality "text" for a map without a bridge that sets another.
    """

    config_keys = ["modality", "normalize", "side", "role"]  # noqa: RUF012  # as in the base class

    def __init__(
        self,
        mapping: Map | Bridge,
        modality: str | None = None,
        normalize: bool | str = "auto",
        side: str = "source",
        role: str = "query",
    ) -> None:
        super().__init__()
        self.mapping, given = _asked(mapping, modality, normalize, side, role)
        self.modality, self.normalize, self.side, self.role = (given[key] for key in self.config_keys)
        self.module = self.mapping.to_torch(None, self.normalize, side=side)

    def forward(self, features: dict[str, Tensor], **kwargs: object) -> dict[str, Tensor]:
        """Map ``features["sentence_embedding"]``."""
        features["sentence_embedding"] = self.module(features["sentence_embedding"])
        return features

    def get_embedding_dimension(self) -> int:
        """Return the width of mapped rows."""
        return self.mapping.d_out

    #: The name before version 6 of sentence-transformers.
    get_sentence_embedding_dimension = get_embedding_dimension

    def save(self, output_path: str, *args: object, safe_serialization: bool = True, **kwargs: object) -> None:
        """Write the arguments as ``config.json``, and the map as a folder ``map``, which ``congruence.load`` reads."""
        self.save_config(output_path)
        self.mapping.save(Path(output_path) / "map", force=True)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: object) -> Self:
        """Load a saved module from a folder or the Hugging Face hub; the map's digests are checked, and no code is
        run.
        """
        hub = {key: kwargs[key] for key in ("token", "cache_folder", "revision", "local_files_only") if key in kwargs}
        config = cls.load_config(model_name_or_path, subfolder=subfolder, **hub)
        folder = cls.load_dir_path(model_name_or_path, subfolder=subfolder, **hub)
        return cls(load(Path(folder) / "map"), **{key: config[key] for key in cls.config_keys if key in config})


def to_modules(mapping: Map | Bridge, **options: Any) -> list[nn.Module]:
    """Return the map as the library's own ``Dense``, ``LayerNorm`` and ``Normalize`` modules, whose weights can be
    trained, and which load without congruence and without ``trust_remote_code``. Parameters as for ``MapModule``.
    """
    mapping, given = _asked(mapping, **options)
    side = given["side"]
    width = mapping.d_target if side == "target" else mapping.n_features_in_
    with torch.random.fork_rng(devices=[]):  # the initial weights of new modules must not change the caller's generator
        return _modules(_widen_sums(mapping.as_layers(None, given["normalize"], side=side)), width)


def map_model(model: SentenceTransformer, mapping: Map | Bridge, **options: Any) -> SentenceTransformer:
    """Return a new model that is ``model``, the map's source, with the map appended; parameters as for ``MapModule``.

    Both share the modules of ``model``. The map is standard modules if these can express it (``to_modules``), else a
    ``MapModule``. Vectors are scaled to unit norm before the map if it was fitted on unit rows.
    """
    mapping, given = _asked(mapping, **options)
    if model.truncate_dim is not None:
        raise ParameterError(
            f"Got a model with truncate_dim={model.truncate_dim}, which would cut mapped vectors; expected a "
            "model without it.",
            "Load the model without truncate_dim, and fit the map on complete vectors.",
        )
    current = hasattr(model, "get_embedding_dimension")  # sentence-transformers 6 or later
    width = model.get_embedding_dimension() if current else model.get_sentence_embedding_dimension()
    expected, space = mapping.n_features_in_, mapping.source_space_
    if given["side"] == "target":
        expected, space = mapping.d_target, mapping.target_space_
    if width != expected:
        problem = f"Got a model of {width}-d vectors; expected {expected}-d, the width of this map's input ({space})."
        raise ShapeError(problem, "Use the map's source model, or the inverse map.")
    try:
        appended = to_modules(mapping, **given)
    except _NoModuleError:
        appended = [MapModule(mapping, **given)]
    modules = list(model)
    if space.normalized and not isinstance(modules[-1], Normalize):
        modules.append(Normalize())
    return library.SentenceTransformer(
        modules=[*modules, *appended],
        device=str(model.device),
        prompts=dict(model.prompts),
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
    )


def export_sentence_transformers(
    mapping: Map | Bridge,
    model: SentenceTransformer | str | Path,
    path: str | Path,
    *,
    force: bool = False,
    **options: Any,
) -> Path:
    """Write a model with the map appended as a folder that ``SentenceTransformer(path)`` can load.

    ``model`` may be a name or folder, which is loaded without running code from it (FileError if that fails); ``force``
    replaces only a folder that this function wrote; the rest is as for ``MapModule``.
    """
    mapping, given = _asked(mapping, **options)
    check_model_output(path, force=force)
    name = str(model) if isinstance(model, (str, Path)) else "a model in memory"
    if isinstance(model, (str, Path)):
        try:
            model = library.SentenceTransformer(
                name,
                device="cpu",
                trust_remote_code=False,
                local_files_only=Path(name).is_dir(),  # otherwise the hub is queried for the folder's name
            )
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            raise FileError(
                f"Got an error while loading {name} ({short(str(error), 300)}); expected a model of "
                "sentence-transformers.",
                "Pass `model=` with its folder, or its name on the hub.",
            ) from error
    mapped = map_model(model, mapping, **given)
    trust = any(isinstance(module, MapModule) for module in mapped)
    with model_folder(path, force=force) as folder:
        mapped.save_pretrained(str(folder), create_model_card=False)
        (folder / "README.md").write_text(_card(name, mapping, trust), encoding="utf-8")
    return Path(path)


def _asked(
    mapping: Map | Bridge,
    modality: str | None = None,
    normalize: bool | str = "auto",
    side: str = "source",
    role: str = "query",
) -> tuple[Map, dict[str, Any]]:
    """Return the map of a role, and all parameters of ``MapModule``."""
    modality = modality or getattr(mapping, "modality", None) or "text"  # what these models encode
    mapping, normalize = as_map(mapping, modality, normalize, role)
    return mapping, {"modality": modality, "normalize": normalize, "side": side, "role": role}


def _card(name: str, mapping: Map, trust: bool) -> str:
    source, target = (as_markdown(str(space)) for space in (mapping.source_space_, mapping.target_space_))
    argument, note = (
        (", trust_remote_code=True", "\nLoading requires that `congruence` is installed.\n") if trust else ("", "")
    )
    return f"""---
library_name: sentence-transformers
tags: [sentence-transformers, congruence]
---
# {as_markdown(name)}, mapped

Encodes with *{as_markdown(name)}* and maps its vectors, {source}, into the space of {target}.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder"{argument})
vectors = model.encode(["a text"])
```
{note}"""


class _NoModuleError(ParameterError):
    """sentence-transformers has no module for a layer."""


def _widen_sums(layers: Iterable[Layer]) -> list[Layer]:
    """Rewrite the sum of a linear layer and a perceptron as one wider perceptron, using gelu(t) − gelu(−t) = t."""
    out: list[Layer] = []
    for layer in layers:
        kinds = [[inner["kind"] for inner in branch] for branch in layer.get("branches", [])]
        if kinds != [["linear"], ["linear", "gelu", "linear"]]:
            out.append(layer)
            continue
        (linear,), (first, _, last) = layer["branches"]
        identity = np.eye(linear["weight"].shape[1])
        weight = np.hstack([first["weight"], linear["weight"], -linear["weight"]])
        bias = np.concatenate([first["bias"], linear["bias"], -linear["bias"]])
        out += [
            {"kind": "linear", "weight": weight, "bias": bias},
            {"kind": "gelu"},
            {"kind": "linear", "weight": np.vstack([last["weight"], identity, -identity]), "bias": last["bias"]},
        ]
    return out


def _modules(layers: list[Layer], width: int) -> list[nn.Module]:
    """Return modules for layers of rows of this width; an activation belongs to the module before it, if it can."""
    out: list[nn.Module] = []
    for layer in layers:
        kind = layer["kind"]
        if kind == "normalize":
            out.append(Normalize())
        elif kind == "linear":
            out.append(_dense(layer["weight"], layer.get("bias")))
            width = layer["weight"].shape[1]
        elif kind == "center":
            out.append(_dense(np.eye(width), -layer["mean"]))
        elif kind in ACTIVATIONS:
            if not (out and isinstance(out[-1], Dense) and isinstance(out[-1].activation_function, torch.nn.Identity)):
                out.append(_dense(np.eye(width), None))
            out[-1].activation_function = getattr(torch.nn, ACTIVATIONS[kind])()
        elif kind == "layernorm" and layer["eps"] == 1e-5:
            module = LayerNorm(width)
            module.norm.load_state_dict(
                {name: torch.as_tensor(layer[name]) for name in ("weight", "bias") if name in layer}, strict=False
            )
            out.append(module)
        else:
            raise _NoModuleError(
                f"Got a map with a {kind} layer, for which sentence-transformers has no module; expected linear "
                "layers, activations and norms. Use MapModule."
            )
    return out


def _dense(weight: np.ndarray, bias: np.ndarray | None) -> nn.Module:
    return Dense(
        *weight.shape,
        bias=bias is not None,
        activation_function=torch.nn.Identity(),
        init_weight=torch.tensor(np.ascontiguousarray(weight.T), dtype=torch.float32),
        init_bias=None if bias is None else torch.tensor(bias, dtype=torch.float32),
    )
