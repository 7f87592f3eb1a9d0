"""The loop: optimizers against their equations, resuming to the bit, and what stops it."""

import json
import math

import numpy as np
import pytest

from congruence.errors import CorruptFileError, FileError, ParameterError, TrainingError
from congruence.train import History
from congruence.train.checkpoint import Checkpoint
from congruence.train.loop import Schedule, _seed, autocast, clip_gradient, run, used_precision

torch = pytest.importorskip("torch", reason="the loop needs torch")

from congruence.train.optim import Lion, make_optimizer, rate_at  # noqa: E402


class Toy:
    """Fit a matrix to noisy rows; the noise is drawn from torch's own generator, as dropout is."""

    def __init__(self, fail_at=None, scores=None):
        self.module = torch.nn.Linear(5, 3)
        with torch.no_grad():
            self.module.weight.fill_(0.1)
            self.module.bias.zero_()
        self.fail_at, self.scores, self.steps = fail_at, scores, []
        self.X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
        self.Y = self.X @ torch.randn(5, 3, generator=torch.Generator().manual_seed(1))

    def batch(self, step):
        self.steps.append(step)
        return step

    def training_step(self, step):
        value = (self.module(self.X + 0.1 * torch.randn(40, 5)) - self.Y).square().mean()
        if step == self.fail_at:
            value = value * math.nan
        return {"loss": value, "part": value.detach() / 2}

    def validate(self):
        return None if self.scores is None else self.scores.pop(0)


def weights(task):
    return {name: value.clone() for name, value in task.module.state_dict().items()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_lion_is_its_algorithm():
    rng = np.random.default_rng(0)
    p, gradients = rng.normal(size=(3, 4)), rng.normal(size=(6, 3, 4))
    tensor = torch.nn.Parameter(torch.tensor(p))
    lion = Lion([tensor], lr=0.01, betas=(0.9, 0.99), weight_decay=0.2)
    m = np.zeros_like(p)
    for g in gradients:
        p = p - 0.01 * (np.sign(0.9 * m + 0.1 * g) + 0.2 * p)
        m = 0.99 * m + 0.01 * g
        tensor.grad = torch.tensor(g)
        lion.step()
    np.testing.assert_allclose(tensor.detach().numpy(), p, rtol=1e-12)


def test_vectors_and_scalars_do_not_decay():
    module = torch.nn.Linear(3, 2)
    groups = make_optimizer("adamw", module, 0.1, 0.5).param_groups
    assert [(len(g["params"]), g["params"][0].ndim, g["weight_decay"]) for g in groups] == [(1, 2, 0.5), (1, 1, 0.0)]


@pytest.mark.parametrize("clip", [None, 0.01, 1e6])
def test_adamw_steps_as_with_gradients_that_torch_clipped(clip):
    task = Toy()
    options = {"learning_rate": 0.01, "schedule": "constant", "optimizer": "adamw", "device": "cpu"}
    schedule = Schedule(max_steps=5, clip=clip, **options)
    run(task, schedule, verbose=False)

    plain = Toy()
    other = torch.optim.AdamW(plain.module.parameters(), lr=0.01, weight_decay=0.0)
    for step in range(5):
        torch.manual_seed(_seed(schedule.random_state, step))
        other.zero_grad()
        plain.training_step(step)["loss"].backward()
        torch.nn.utils.clip_grad_norm_(plain.module.parameters(), clip or math.inf)
        other.step()
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(task)[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clip", [None, 0.01, 1e6])
def test_lion_is_given_gradients_as_torch_clips_them(clip):
    ends = []
    for ours in (True, False):
        task = Toy()
        torch.manual_seed(0)
        task.training_step(0)["loss"].backward()
        parameters = list(task.module.parameters())
        lion = make_optimizer("lion", task.module, 0.01, 0.0)
        theirs = torch.nn.utils.clip_grad_norm_
        norm = clip_gradient(parameters, clip, lion) if ours else theirs(parameters, clip or math.inf)
        ends.append([float(norm), *(p.grad for p in parameters)])
    for mine, theirs in zip(*ends, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-8)


def test_the_rate_rises_and_falls_as_a_cosine():
    rates = [rate_at(step, 110, 10, "cosine") for step in range(110)]
    assert rates[:10] == pytest.approx(np.arange(1, 11) / 10)
    assert rates[10] == 1
    assert rates[60] == pytest.approx(0.5)
    assert 0 < rates[-1] < 1e-3
    assert rate_at(109, 110, 10, "constant") == 1


def test_a_stopped_run_goes_on_to_the_bit(tmp_path):
    schedule = Schedule(max_steps=37, learning_rate=0.01, checkpoint_every=10, log_every=4, optimizer="adamw", clip=1.0)
    whole = Toy()
    record = run(whole, schedule, verbose=False)
    broken = Toy()
    original = broken.training_step

    def stopped(step):
        if step == 25:
            raise KeyboardInterrupt
        return original(step)

    broken.training_step = stopped
    with pytest.raises(KeyboardInterrupt):
        run(broken, schedule, checkpoint=tmp_path / "c", verbose=False)
    again = Toy()
    resumed = run(again, schedule, checkpoint=tmp_path / "c", verbose=False)
    assert again.steps == list(range(20, 37))
    assert same(weights(again), weights(whole))
    assert resumed.to_dict() == record.to_dict()
    third = Toy()
    run(third, schedule, checkpoint=tmp_path / "c", verbose=False)  # nothing is left to do
    assert third.steps == []
    assert same(weights(third), weights(whole))


def test_the_best_weights_come_back_and_patience_ends_the_run(tmp_path):
    scores = [0.1, 0.5, 0.4, 0.3, 0.2, 0.9]
    task = Toy(scores=list(scores))
    kept = {}
    validate = task.validate

    def watch():
        score = validate()
        kept[score] = weights(task)
        return score

    task.validate = watch
    schedule = Schedule(max_steps=100, validate_every=5, patience=3, learning_rate=0.01)
    history = run(task, schedule, verbose=False, checkpoint=tmp_path / "c")
    assert history.steps == 20
    assert history.best_step == 5
    assert history.best_score == 0.5
    assert same(weights(task), kept[0.5])
    assert not same(kept[0.5], kept[0.2])


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(tmp_path):
    schedule = Schedule(max_steps=50, checkpoint_every=10)
    with pytest.raises(TrainingError, match=r"step 25; .*checkpoint of step 20 is kept"):
        run(Toy(fail_at=25), schedule, checkpoint=tmp_path / "c", verbose=False)
    assert json.loads((tmp_path / "c" / "checkpoint.json").read_text())["history"]["steps"] == 20
    with pytest.raises(TrainingError, match="No checkpoint was requested"):
        run(Toy(fail_at=0), schedule, verbose=False)
    with pytest.raises(TrainingError, match="No checkpoint had been written"):
        run(Toy(fail_at=3), schedule, checkpoint=tmp_path / "d", verbose=False)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    fit = {"checkpoint": tmp_path / "c", "verbose": False, "identity": {"data": "a"}}
    run(Toy(), Schedule(max_steps=4), **fit)
    with pytest.raises(TrainingError, match=r"data was 'a', is 'b'"):
        run(Toy(), Schedule(max_steps=4), **{**fit, "identity": {"data": "b"}})
    with pytest.raises(TrainingError, match=r"schedule.max_steps was 4, is 5"):
        run(Toy(), Schedule(max_steps=5), **fit)
    with pytest.raises(TrainingError, match="resume"):
        run(Toy(), Schedule(max_steps=4), resume=False, **fit)


def test_a_damaged_checkpoint_is_an_error_of_ours(tmp_path):
    schedule = Schedule(max_steps=4)
    run(Toy(), schedule, checkpoint=tmp_path / "c", verbose=False)
    file = tmp_path / "c" / "checkpoint.safetensors"
    raw = file.read_bytes()
    for damage in (raw[:-20], raw[:50], raw[:-1] + bytes([raw[-1] ^ 1]), b""):
        file.write_bytes(damage)
        with pytest.raises(CorruptFileError):
            run(Toy(), schedule, checkpoint=tmp_path / "c", verbose=False)
    file.write_bytes(raw)
    (tmp_path / "c" / "checkpoint.json").write_text("[")
    with pytest.raises(CorruptFileError):
        run(Toy(), schedule, checkpoint=tmp_path / "c", verbose=False)


def training():
    """A module and its optimizer after a step."""
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return module, optimizer


STATES = {
    "no mapping": lambda state: [],
    "identity": lambda state: {**state, "identity": ["x"]},
    "steps": lambda state: {**state, "history": {**state["history"], "steps": True}},
    "losses": lambda state: {**state, "history": {**state["history"], "losses": {"loss": ["x"]}}},
}


@pytest.mark.parametrize("change", STATES)
def test_a_state_that_cannot_be_is_refused(change, tmp_path):
    module, optimizer = training()
    saved = Checkpoint(tmp_path / "000", {"steps": 9}, None)
    saved.save(module, optimizer, History(steps=1), module.state_dict())
    file = tmp_path / "000" / "checkpoint.json"
    file.write_text(json.dumps(STATES[change](json.loads(file.read_text()))))
    with pytest.raises(CorruptFileError, match="checkpoint"):
        saved.load(*training())


TENSORS = {
    "weights": lambda weights, best, moments: weights[0, 0].fill_(torch.nan),
    "best weights": lambda weights, best, moments: best["weight"][0, 0].fill_(torch.nan),
    "shapes differ": lambda weights, best, moments: best.update(weight=torch.ones(2, 4)),
    "exp_avg_sq": lambda weights, best, moments: moments["exp_avg_sq"][0, 0].fill_(-1),
    "step": lambda weights, best, moments: moments["step"].fill_(-1),
    "moments": lambda weights, best, moments: moments["step"].fill_(torch.inf),
    "exp_avg": lambda weights, best, moments: moments.update(exp_avg=torch.ones(2, 2)),
    "kinds": lambda weights, best, moments: moments.pop("exp_avg"),
}


@pytest.mark.parametrize("what", TENSORS)
def test_tensors_that_cannot_be_are_refused(what, tmp_path):
    module, optimizer = training()
    best = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with torch.no_grad():
        TENSORS[what](module.weight, best, optimizer.state[module.weight])
    saved = Checkpoint(tmp_path / "000", {"steps": 9}, None)
    saved.save(module, optimizer, History(steps=1), best)
    with pytest.raises(CorruptFileError, match=what):
        saved.load(*training())


def test_places_a_checkpoint_cannot_be_in(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "no" / "c"):
        with pytest.raises(FileError):
            run(Toy(), Schedule(max_steps=1), checkpoint=path, verbose=False)


def test_the_callers_random_numbers_are_left_alone():
    task = Toy()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    run(task, Schedule(max_steps=3), verbose=False)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_steps": 0}, {"learning_rate": -1.0}, {"optimizer": "sgd"}, {"schedule": "linear"}, {"warmup": 1.5},
        {"precision": "float16"}, {"random_state": -1}, {"patience": 0}, {"clip": 0.0},
    ],
)  # fmt: skip
def test_options_out_of_their_range(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        Schedule(**wrong)


@pytest.mark.parametrize(
    ("precision", "device", "native", "used"),
    [
        ("auto", "cpu", True, "bfloat16"), ("auto", "cpu", False, "float32"), ("auto", "cuda:0", True, "float32"),
        ("bfloat16", "cpu", False, "bfloat16"), ("float32", "cpu", True, "float32"),
    ],
)  # fmt: skip
def test_the_precision_a_processor_multiplies_itself(precision, device, native, used, monkeypatch):
    monkeypatch.setattr("congruence.train.loop.processor_has_bfloat16", lambda: native)
    assert used_precision(precision, device) == used
    if device == "cpu":
        with autocast(device, precision):
            product = torch.ones(2, 2) @ torch.ones(2, 2)
        assert str(product.dtype) == f"torch.{used}"


def test_a_device_that_is_not_there():
    from congruence.train import SAIL

    with pytest.raises(ParameterError, match="device"):
        SAIL(device="tpu").fit(np.eye(4), np.eye(4), verbose=False)
