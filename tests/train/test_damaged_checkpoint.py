"""Checkpoints whose checksum is right and whose contents are not."""

import json

import pytest
import torch

from congruence.errors import CorruptFileError
from congruence.train import History
from congruence.train.checkpoint import Checkpoint


def training():
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
