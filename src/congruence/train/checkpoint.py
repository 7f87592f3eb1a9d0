"""A folder with the state of a training run, from which the run can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from congruence._utils.atomic import atomic_path, check_output, has_marker, locked, recover, why_foreign
from congruence._utils.refusals import describe_refusal
from congruence.errors import CorruptFileError, OutputExistsError, StorageError, TrainingError
from congruence.maps.history import History

if TYPE_CHECKING:
    from torch import Tensor
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
        self.identity = json.loads(json.dumps({"schedule": schedule, **(identity or {})}, default=str))

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

    def save(self, module: Module, optimizer: Optimizer, history: History, best: Mapping[str, Tensor]) -> None:
        """Write the weights, the moments, the history and the best weights so far."""
        import safetensors.torch
        import torch

        arrays = {f"module.{name}": tensor for name, tensor in module.state_dict().items()}
        arrays |= {f"best.{name}": tensor for name, tensor in best.items()}
        for number, moments in optimizer.state_dict()["state"].items():
            arrays |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in moments.items()}
        # safetensors refuses tensors that share memory, as those of a snapshot may, so copies are written.
        weights = safetensors.torch.save({key: value.detach().cpu().clone() for key, value in arrays.items()})
        state = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "identity": self.identity,
            "history": history.to_dict(),
            "sha256": hashlib.sha256(weights).hexdigest(),
        }
        with atomic_path(self.path, force=True, directory=True, foreign=why_no_checkpoint) as folder:
            (folder / WEIGHTS).write_bytes(weights)
            (folder / STATE).write_text(json.dumps(state), encoding="utf-8")

    def load(self, module: Module, optimizer: Optimizer) -> tuple[History, dict[str, Tensor]]:
        """Restore module and optimizer from the checkpoint; return the history and the best weights."""
        import safetensors.torch

        unreadable = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
        try:
            state = json.loads((self.path / STATE).read_text(encoding="utf-8"))
            if (state["format"], state["format_version"]) != (FORMAT, FORMAT_VERSION):
                raise ValueError(f"not a {FORMAT} of version {FORMAT_VERSION}")
            raw = (self.path / WEIGHTS).read_bytes()
            if state["sha256"] != hashlib.sha256(raw).hexdigest():
                raise ValueError("the weights do not match their digest")
            history, stored = History.from_dict(state["history"]), _flat(state["identity"])
            groups: dict[str, dict[str, Tensor]] = {"module": {}, "best": {}, "optimizer": {}}
            for key, tensor in safetensors.torch.load(raw).items():
                kind, _, name = key.partition(".")
                groups[kind][name] = tensor
        except (*unreadable, safetensors.SafetensorError) as error:
            raise CorruptFileError(f"Got an unreadable checkpoint at {self.path} ({error}).", "Remove it.") from error
        self._check_replaceable()
        ours = _flat(self.identity)
        if differing := sorted(key for key in {*ours, *stored} if ours.get(key) != stored.get(key)):
            key = differing[0]
            raise TrainingError(
                f"{self.path} is a checkpoint of another run ({key} was {stored.get(key)!r}, is {ours.get(key)!r}).",
                "Pass another `checkpoint=…`, or remove this one.",
            )
        try:
            moments = _check(module, optimizer, **groups)
            module.load_state_dict(groups["module"])
            optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        except (RuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
            raise CorruptFileError(
                f"Got a checkpoint at {self.path} that does not fit ({error}).", "Remove it."
            ) from error
        device = next(module.parameters()).device
        return history, {name: tensor.to(device) for name, tensor in groups["best"].items()}


def _check(
    model: Module,
    trained_by: Optimizer,
    module: Mapping[str, Tensor],
    best: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
) -> dict[int, dict[str, Tensor]]:
    """Return the optimizer's moments by the number of their parameter, after checking that all tensors have the shapes
    of the model's, and values that training can have.
    """
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if best and {name: tensor.shape for name, tensor in best.items()} != shapes:
        raise ValueError("best weights whose shapes differ from those of the weights")
    parameters = [parameter for group in trained_by.param_groups for parameter in group["params"]]
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in optimizer.items():
        number, _, name = key.partition(".")
        if value.ndim and value.shape != parameters[int(number)].shape:
            raise ValueError(f"{name} {tuple(value.shape)} for parameter {number}")
        # AdamW divides by 1 − β^step and takes roots of its second moments.
        least = {"step": 1, "exp_avg_sq": 0}.get(name)
        if least is not None and (value < least).any():
            raise ValueError(f"{name} of parameter {number} below {least}")
        moments.setdefault(int(number), {})[name] = value
    if min(moments, default=0) < 0 or len({frozenset(one) for one in moments.values()}) > 1:
        raise ValueError("moments of different kinds")
    for what, tensors in (("weights", module), ("best weights", best), ("moments", optimizer)):
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise ValueError(f"{what} that are not finite")
    return moments


def _flat(facts: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return nested facts as one mapping, with keys joined by dots."""
    flat: dict[str, object] = {}
    for key, value in facts.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


#: The file that marks a folder for the checkpoints of one command, and its format.
MARKER, MARKER_FORMAT = "checkpoints.json", "congruence-checkpoints"

#: Names of checkpoints, the number of their combination, and within it those of each fold and of the last training; and
#: of temporary folders that a killed process left behind.
_NUMBERED, _PART = re.compile(r"\d{3,}"), re.compile(r"fold\d+|all")
_LEFT_OVER = re.compile(r"\.(\d{3,}|fold\d+|all)\.([0-9a-f]{8}-\d+-[0-9a-f]{8}\.tmp|old)")


@contextmanager
def own_folder(place: Path) -> Iterator[Path]:
    """Yield a folder for checkpoints that is removed on success; one left by an interrupted run is reused. If the block
    fails, its checkpoints are kept, and a folder without any is removed.
    """

    def marked() -> bool:
        return has_marker(place / MARKER, MARKER_FORMAT)

    with suppress(OutputExistsError), atomic_path(place, directory=True) as folder:
        _mark(folder, made=True)
    if place.is_symlink() or not place.is_dir() or not (marked() or not any(place.iterdir())):
        raise OutputExistsError(
            f"Got something at {place} that this library did not write.", "Pass another `checkpoint=…`, or move it."
        )
    with locked(place, _IN_USE.format(place)):
        if not marked():  # an empty folder that the user created, which is not removed at the end
            _mark(place, made=False)
        try:
            yield place
        except BaseException as error:
            with suppress(OSError):
                if not _told(error, place):
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
        problem = f"Got a file at {place} for checkpoints, not a folder."
        raise OutputExistsError(problem, "Pass another `checkpoint=…`.") from None
    except OSError as error:
        raise StorageError(describe_refusal(error, f"from the disk for the checkpoints at {place}")) from error
    with locked(place, _IN_USE.format(place)):
        try:
            yield place
        except BaseException as error:
            if not _told(error, place) and made:
                with suppress(OSError):  # not empty
                    place.rmdir()
            raise


def _told(error: BaseException, place: Path) -> bool:
    """Return whether there are checkpoints in a folder, which an interruption is then told of."""
    found = any(place.rglob(STATE))
    if found and not isinstance(error, Exception):
        error.add_note(f"The checkpoints are in {place}; repeat the command to continue.")
    return found


_IN_USE = "Got checkpoints at {} that another run is using; expected one run. Wait for it, or name another folder."


def _mark(folder: Path, *, made: bool) -> None:
    """Write the marker file; ``made`` says whether the folder was created for the checkpoints."""
    facts = {"format": MARKER_FORMAT, "format_version": FORMAT_VERSION, "made_folder": made}
    with atomic_path(folder / MARKER) as temporary:
        temporary.write_text(json.dumps(facts) + "\n", encoding="utf-8")


def _is_ours(entry: Path, names: re.Pattern[str]) -> bool:
    """Return whether a folder is a checkpoint of such a name, one of several parts, or left over."""
    if entry.is_symlink() or not entry.is_dir():
        return False
    if _LEFT_OVER.fullmatch(entry.name):
        return True
    if not names.fullmatch(entry.name):
        return False
    if why_no_checkpoint(entry) is None:
        return True
    return names is _NUMBERED and all(_is_ours(part, _PART) for part in entry.iterdir())


def _clear(place: Path) -> None:
    """Remove the checkpoints, and the folder too if it was created for them and contains nothing else."""
    made = json.loads((place / MARKER).read_bytes()).get("made_folder") is True
    for entry in place.iterdir():
        if _is_ours(entry, _NUMBERED):
            shutil.rmtree(entry, ignore_errors=True)
    if os.listdir(place) == [MARKER]:
        (place / MARKER).unlink()
        if made:
            with suppress(OSError):  # another process has just written to it
                place.rmdir()
