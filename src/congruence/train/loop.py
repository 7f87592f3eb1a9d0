"""The training loop of all methods: validation, a history, and checkpoints from which a run resumes bit for bit."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from congruence._utils.optional import require
from congruence._utils.progress import progress_bar
from congruence._utils.validation import check_choice, check_positive, check_seed
from congruence.errors import TrainingError
from congruence.maps.history import History
from congruence.train.checkpoint import Checkpoint

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter
    from torch.optim import Optimizer


@dataclass(kw_only=True)
class Schedule:
    """Length, learning rate and other settings of a training run.

    - ``optimizer``: "lion", "adamw".
    - ``learning_rate``: The highest learning rate.
    - ``warmup``: Number of steps over which the learning rate rises.
    - ``schedule``: "cosine", "constant". Learning rate after the warmup.
    - ``clip``: Largest norm of the gradient of all parameters.
    - ``validate_every``, ``patience``: Steps between validations, and number of validations without improvement after
      which training ends. Step 0 is validated, too.
    - ``log_every``: Steps between recorded losses.
    - ``checkpoint_every``: Steps between checkpoints.
    - ``precision``: "auto", "float32", "bfloat16". Precision in which the heads multiply; weights and losses are
      float32. ``"auto"`` uses bfloat16 on processors that have instructions for it; on others it is ten times slower
      than float32.
    - ``device``: ``"auto"`` uses cuda or mps if available.
    """

    max_steps: int = 2000
    optimizer: str = "lion"
    learning_rate: float = 1e-4
    weight_decay: float = 1e-5
    warmup: int = 0
    schedule: str = "cosine"
    clip: float | None = None
    validate_every: int = 100
    patience: int | None = None
    log_every: int = 10
    checkpoint_every: int = 200
    precision: str = "float32"
    device: str = "auto"
    random_state: int = 0

    def __post_init__(self) -> None:
        for name in ("max_steps", "validate_every", "log_every", "checkpoint_every"):
            check_positive(getattr(self, name), name, integer=True)
        check_positive(self.learning_rate, "learning_rate")
        check_positive(self.weight_decay, "weight_decay", zero=True)
        check_positive(self.warmup, "warmup", zero=True, integer=True)
        for name in ("clip", "patience"):
            if getattr(self, name) is not None:
                check_positive(getattr(self, name), name, integer=name == "patience")
        check_choice(self.optimizer, ("lion", "adamw"), "optimizer")
        check_choice(self.schedule, ("cosine", "constant"), "schedule")
        check_choice(self.precision, ("auto", "float32", "bfloat16"), "precision")
        check_seed(self.random_state)


#: Called with a step and its losses and learning rate, or its validation score.
Callback: TypeAlias = Callable[[int, Mapping[str, float]], None]


class Objective(Protocol):
    """A ``module`` to train, the batches and losses of its steps, and a score by which weights are selected."""

    module: Module

    def batch(self, step: int) -> Any:
        """Return the data of a step, determined by the step and the seed alone."""

    def training_step(self, batch: Any) -> Mapping[str, Tensor]:
        """Return the terms of the loss of a batch as scalar tensors; ``"loss"`` is minimized."""

    def validate(self) -> float | None:
        """Return a score (larger is better), or None."""


def run(
    objective: Objective,
    schedule: Schedule,
    *,
    checkpoint: str | Path | None = None,
    resume: bool = True,
    identity: Mapping[str, object] | None = None,
    verbose: bool = True,
    stop: int | None = None,
    callback: Callback | None = None,
) -> History:
    """Train until all steps are done, or ``stop`` of them, or the patience is exhausted; the module then has its best
    weights, or the last ones without validation.

    The module is on its device. ``checkpoint`` is a folder with an existing parent; ``identity`` is plain data, and a
    checkpoint with another identity is refused. All randomness of a step derives from ``random_state`` and the step, so
    that a resumed run equals an uninterrupted one bit for bit, on one machine with a fixed number of threads.
    """
    torch = require("torch", extra="train")
    from congruence.train.optim import make_optimizer, rate_at

    total = schedule.max_steps if stop is None else min(stop, schedule.max_steps)
    if stop is not None:
        identity = {**(identity or {}), "stop": stop}
    module = objective.module
    optimizer = make_optimizer(schedule.optimizer, module, schedule.learning_rate, schedule.weight_decay)
    saved = None if checkpoint is None else Checkpoint(Path(checkpoint), asdict(schedule), identity)
    history, best = History(), _snapshot(module)
    if saved is not None and saved.exists:
        if not resume:
            raise TrainingError(f"{checkpoint} exists, and `resume=False`.", ("Remove it.", "Pass `resume=True`."))
        history, best = saved.load(module, optimizer)
    parameters = [p for p in module.parameters() if p.requires_grad]
    patience = math.inf if schedule.patience is None else schedule.patience
    state = torch.random.get_rng_state()

    def validate(best: dict[str, Tensor]) -> dict[str, Tensor]:
        """Score the module, and return the best weights so far."""
        # Modes are set here, not in each step: that visits all layers, a sixth of the time of a step of small heads.
        module.eval()
        score, before = objective.validate(), history.best_score
        module.train()
        if score is None:
            return best
        history.validation.append((history.steps, float(score)))
        if callback is not None:
            callback(history.steps, {"validation": float(score)})
        if before is not None and not score > before:
            return best
        history.best_step = history.steps
        return _snapshot(module)

    module.train()
    try:
        if not history.validation:
            best = validate(best)
        with progress_bar("training", total, done=history.steps, quiet=not verbose) as bar:
            while history.steps < total and history.validations_since_best < patience:
                step = history.steps
                rate = schedule.learning_rate * rate_at(step, schedule.max_steps, schedule.warmup, schedule.schedule)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                _seed_generators(_seed(schedule.random_state, step), parameters)
                optimizer.zero_grad(set_to_none=True)
                terms = objective.training_step(objective.batch(step))
                terms["loss"].backward()
                values = {name: float(value.detach()) for name, value in terms.items()}
                norm = clip_gradient(parameters, schedule.clip, optimizer)
                if not (all(map(math.isfinite, values.values())) and math.isfinite(norm)):
                    bad = [f"{name} = {value:g}" for name, value in values.items() if not math.isfinite(value)]
                    kept = "No checkpoint was requested." if saved is None else saved.describe()
                    problem = ", ".join(bad) or f"a gradient of norm {norm:g}"
                    raise TrainingError(
                        f"Got {problem} at step {step}; expected finite losses.",
                        f"Lower the learning rate, or raise the temperatures. {kept}",
                    )
                optimizer.step()
                history.steps = step + 1
                last = history.steps == total
                if step % schedule.log_every == 0 or last:
                    for name, value in {"step": step, **values}.items():
                        history.losses.setdefault(name, []).append(value)
                    if callback is not None:
                        callback(step, {**values, "learning_rate": rate})
                if bar is not None:
                    bar.show(history.steps, _status(values, history))
                if history.steps % schedule.validate_every == 0 or last:
                    best = validate(best)
                if saved is not None and (history.steps % schedule.checkpoint_every == 0 or last):
                    saved.save(module, optimizer, history, best)
    finally:
        torch.random.set_rng_state(state)
    if history.best_step is not None:
        module.load_state_dict(best)
    module.eval()
    return history


def _seed_generators(seed: int, parameters: list[Parameter]) -> None:
    """Seed the generators that dropout draws from, without ``torch.manual_seed`` where it is not needed: that also
    stores the seed and a stack trace for each kind of device that is not in use yet, until the end of the process.
    """
    import torch

    torch.default_generator.manual_seed(seed)
    if any(parameter.device.type != "cpu" for parameter in parameters):
        torch.manual_seed(seed)


def _seed(seed: int, step: int) -> int:
    """Return the seed of a step."""
    digest = hashlib.sha256(f"{seed}:{step}".encode()).digest()
    return int.from_bytes(digest[:7], "little")


def _snapshot(module: Module) -> dict[str, Tensor]:
    """Return a copy of the module's state."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def clip_gradient(parameters: list[Parameter], clip: float | None, optimizer: Optimizer) -> float:
    """Clip the norm of the gradient, directly or through the optimizer, and return the norm before."""
    import torch

    norm = float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    excess = None if clip is None or not clip < norm < math.inf else norm / clip
    if optimizer.defaults.get("fused"):  # the fused optimizer scales the gradient in its own pass
        optimizer.grad_scale = None if excess is None else torch.tensor(excess)
    elif excess is not None:
        torch._foreach_div_([p.grad for p in parameters if p.grad is not None], excess)
    return norm


def _status(values: dict[str, float], history: History) -> str:
    """Return the losses of a step and the last validation score, for the progress bar."""
    validation = [("validation", f"{history.validation[-1][1]:.3f}")] if history.validation else []
    return "  ".join(" ".join(pair) for pair in [*((k, f"{v:.4g}") for k, v in values.items()), *validation])


def autocast(device: str, precision: str) -> AbstractContextManager[object]:
    """Return the context in which the heads are applied: bfloat16 where the precision asks for it."""
    import torch

    enabled = used_precision(precision, device) == "bfloat16"
    return torch.autocast(device.partition(":")[0], dtype=torch.bfloat16, enabled=enabled)


def used_precision(precision: str, device: str) -> str:
    """Return the precision that ``"auto"`` selects on a device; any other precision unchanged."""
    if precision != "auto":
        return precision
    return "bfloat16" if device == "cpu" and processor_has_bfloat16() else "float32"


def processor_has_bfloat16() -> bool:
    """Return whether the processor has bfloat16 multiplication; where torch cannot tell, float32 is the safe choice."""
    import torch

    native = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return native is not None and bool(native())
