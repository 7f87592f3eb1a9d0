"""A folder with the state of a training run, from which the run can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from congruence._utils.atomic import atomic_path, check_output, has_marker, locked, recover, why_foreign
from congruence._utils.refusals import describe_refusal
from congruence.errors import CorruptFileError, OutputExistsError, StorageError, TrainingError
from congruence.maps.history import History

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer

WEIGHTS, STATE = "checkpoint.safetensors", "checkpoint.json"
FORMAT, FORMAT_VERSION = "congruence-checkpoint", 1


def why_no_checkpoint(folder: Path) -> str | None:
    """Return why a folder must not be replaced by a checkpoint; None if it is one."""
    return why_foreign(folder, "a checkpoint", STATE, FORMAT, lambda name: name in (WEIGHTS, STATE))


class Checkpoint:
    """A folder with the weights, the optimizer's moments and the history, written atomically."""

    def __init__(self, path: Path, schedule: Mapping[str, object], identity: Mapping[str, object] | None):
        self.path = path
        recover(path, why_no_checkpoint)
        if not self.exists:  # otherwise load() reports what is wrong
            self._check_replaceable()
        run = {"schedule": schedule, **(identity or {})}
        self.identity = json.loads(json.dumps(run, default=str))

    @property
    def exists(self) -> bool:
        """Whether a checkpoint has been written."""
        return (self.path / STATE).is_file()

    def _check_replaceable(self) -> None:
        check_output(self.path, force=True, directory=True, foreign=why_no_checkpoint)

    def describe(self) -> str:
        """Return a sentence that says which step is stored, for a message."""
        if not self.exists:
            return f"No checkpoint had been written to {self.path} yet."
        steps = json.loads((self.path / STATE).read_text(encoding="utf-8"))["history"]["steps"]
        return f"The checkpoint of step {steps} is kept at {self.path}."

    def save(self, module: Module, optimizer: Optimizer, history: History, best: Mapping[str, object]) -> None:
        """Write the weights, the moments, the history and the best weights so far."""
        import safetensors.torch

        arrays = {f"module.{name}": tensor for name, tensor in module.state_dict().items()}
        arrays |= {f"best.{name}": tensor for name, tensor in best.items()}
        plain = {}
        for number, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                key = f"optimizer.{number}.{name}"
                if hasattr(value, "shape"):
                    arrays[key] = value
                else:
                    plain[key] = value
        # safetensors refuses tensors that share memory, as those of a snapshot may, so copies are written.
        weights = safetensors.torch.save({key: value.detach().cpu().clone() for key, value in arrays.items()})
        state = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "identity": self.identity,
            "history": history.to_dict(),
            "optimizer": plain,
            "sha256": hashlib.sha256(weights).hexdigest(),
        }
        with atomic_path(self.path, force=True, directory=True, foreign=why_no_checkpoint) as folder:
            (folder / WEIGHTS).write_bytes(weights)
            (folder / STATE).write_text(json.dumps(state), encoding="utf-8")

    def load(self, module: Module, optimizer: Optimizer) -> tuple[History, dict[str, Any]]:
        """Restore module and optimizer from the checkpoint; return the history and the best weights."""
        import safetensors.torch

        try:
            state = json.loads((self.path / STATE).read_text(encoding="utf-8"))
            if not isinstance(state, dict) or (state["format"], state["format_version"]) != (FORMAT, FORMAT_VERSION):
                raise ValueError(f"not a {FORMAT} of version {FORMAT_VERSION}")
            raw = (self.path / WEIGHTS).read_bytes()
            if state["sha256"] != hashlib.sha256(raw).hexdigest():
                raise ValueError("the weights do not match their digest")
            history = History.from_dict(state["history"])
            groups = _grouped({**safetensors.torch.load(raw), **state["optimizer"]})
            identity = state["identity"]
            if not isinstance(identity, dict):
                raise TypeError("the identity is not a mapping")
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            OverflowError,
            safetensors.SafetensorError,
        ) as error:
            raise CorruptFileError(
                f"Got an unreadable checkpoint at {self.path} ({error}).", "Remove it and train again."
            ) from error
        self._check_replaceable()
        self._compare(identity)
        try:
            moments = _moments(groups["optimizer"])
            _check_fit(module, optimizer, groups["module"], groups["best"], moments)
            module.load_state_dict(groups["module"])
            optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CorruptFileError(
                f"Got a checkpoint at {self.path} that does not fit ({error}).", "Remove it and train again."
            ) from error
        device = next(module.parameters()).device
        return history, {name: tensor.to(device) for name, tensor in groups["best"].items()}

    def _compare(self, stored_identity: Mapping[str, object]) -> None:
        """Raise TrainingError if the stored checkpoint belongs to another run."""
        ours, stored = _flat(self.identity), _flat(stored_identity)
        differing = sorted(key for key in {*ours, *stored} if ours.get(key) != stored.get(key))
        if differing:
            key = differing[0]
            raise TrainingError(
                f"{self.path} is a checkpoint of another run ({key} was {stored.get(key)!r}, is {ours.get(key)!r}).",
                "Pass another `checkpoint=…`, or remove this one.",
            )


def _grouped(values: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    """Return the saved values of the module, of the best weights and of the optimizer, by name."""
    groups: dict[str, dict[str, object]] = {"module": {}, "best": {}, "optimizer": {}}
    for key, value in values.items():
        kind, _, name = key.partition(".")
        groups[kind][name] = value
    return groups


def _moments(values: Mapping[str, object]) -> dict[int, dict[str, Any]]:
    """Return the optimizer's moments by the number of their parameter."""
    moments: dict[int, dict[str, object]] = {}
    for key, value in values.items():
        number, _, name = key.partition(".")
        moments.setdefault(int(number), {})[name] = value
    return moments


def _check_fit(
    module: Module,
    optimizer: Optimizer,
    weights: Mapping[str, Any],
    best: Mapping[str, Any],
    moments: Mapping[int, Mapping[str, Any]],
) -> None:
    """Raise ValueError if moments or best weights have other shapes than the module's, or any value is not finite."""
    import torch

    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    if best and {name: tensor.shape for name, tensor in best.items()} != shapes:
        raise ValueError("best weights whose shapes differ from those of the weights")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if len({frozenset(state) for state in moments.values()}) > 1:
        raise ValueError("moments of different kinds")
    for number, state in moments.items():
        for name, value in state.items():
            shape = getattr(value, "shape", torch.Size())
            if not 0 <= number < len(parameters) or shape not in (torch.Size(), parameters[number].shape):
                raise ValueError(f"{name} {tuple(shape)} for parameter {number}")
            if not torch.as_tensor(value).isfinite().all():
                raise ValueError(f"{name} of parameter {number} with numbers that are not finite")
            # AdamW divides by 1 − β^step and takes roots of its second moments.
            least = {"step": 1, "exp_avg_sq": 0}.get(name)
            if least is not None and (torch.as_tensor(value) < least).any():
                raise ValueError(f"{name} of parameter {number} below {least}")
    for what, tensors in (("weights", weights), ("best weights", best)):
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise ValueError(f"{what} that are not finite")


def _flat(facts: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return nested facts as one mapping, with keys joined by dots."""
    flat: dict[str, object] = {}
    for key, value in facts.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


#: The file that marks a folder for the checkpoints of one command, and its format.
MARKER, MARKER_FORMAT = "checkpoints.json", "congruence-checkpoints"

#: Names of checkpoints, the number of their combination, and of temporary folders that a killed process left behind.
_NUMBERED = re.compile(r"\d{3,}")
_LEFT_OVER = re.compile(r"\.\d{3,}\.([0-9a-f]{8}-\d+-[0-9a-f]{8}\.tmp|old)")


@contextmanager
def own_folder(place: Path) -> Iterator[Path]:
    """Yield a folder for checkpoints that is removed on success; one left by an interrupted run is reused. If the block
    fails, its checkpoints are kept, and a folder without any is removed.
    """
    with suppress(OutputExistsError), atomic_path(place, directory=True) as folder:
        _mark(folder, made=True)
    if place.is_symlink() or not place.is_dir() or not (_is_marked(place) or not any(place.iterdir())):
        raise OutputExistsError(
            f"Got something at {place} that this library did not write.", "Pass another `checkpoint=…`, or move it."
        )
    with _locked(place):
        if not _is_marked(place):  # an empty folder that the user created, which is not removed at the end
            _mark(place, made=False)
        try:
            yield place
        except BaseException:
            with suppress(OSError):
                if not any(_NUMBERED.fullmatch(name) for name in os.listdir(place)):
                    _clear(place)
            raise
        _clear(place)


@contextmanager
def named_folder(place: Path) -> Iterator[Path]:
    """Yield a folder for checkpoints that is kept, unless it was created here and the block fails before it writes."""
    made = not place.exists()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OutputExistsError(
            f"Got a file at {place} for checkpoints; expected a folder.", "Pass another `checkpoint=…`."
        ) from None
    except OSError as error:
        raise StorageError(describe_refusal(error, f"from the disk for the checkpoints at {place}")) from error
    with _locked(place):
        try:
            yield place
        except BaseException:
            if made:
                with suppress(OSError):  # not empty
                    place.rmdir()
            raise


def _mark(folder: Path, *, made: bool) -> None:
    """Write the marker file; ``made`` says whether the folder was created for the checkpoints."""
    facts = {"format": MARKER_FORMAT, "format_version": FORMAT_VERSION, "made_folder": made}
    with atomic_path(folder / MARKER) as temporary:
        temporary.write_text(json.dumps(facts) + "\n", encoding="utf-8")


def _is_marked(folder: Path) -> bool:
    return has_marker(folder / MARKER, MARKER_FORMAT)


def _clear(place: Path) -> None:
    """Remove the checkpoints, and the folder too if it was created for them and contains nothing else."""
    made = json.loads((place / MARKER).read_bytes()).get("made_folder") is True
    for entry in place.iterdir():
        if entry.is_symlink() or not entry.is_dir():
            continue
        if _LEFT_OVER.fullmatch(entry.name) or (_NUMBERED.fullmatch(entry.name) and why_no_checkpoint(entry) is None):
            shutil.rmtree(entry, ignore_errors=True)
    if os.listdir(place) == [MARKER]:
        (place / MARKER).unlink()
        if made:
            with suppress(OSError):  # another process has just written to it
                place.rmdir()


def _locked(place: Path) -> AbstractContextManager[None]:
    return locked(
        place,
        f"Got checkpoints at {place} that another run is using; expected one run. Wait for it, or pass another "
        "checkpoint=….",
    )
