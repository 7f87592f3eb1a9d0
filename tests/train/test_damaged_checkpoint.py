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


def written(folder, training, best):
    module, optimizer = training
    saved = Checkpoint(folder / "000", {"steps": 9}, None)
    saved.save(module, optimizer, History(steps=1), best)
    return saved


CHANGES = {
    "no mapping": lambda state: [],
    "no moments": lambda state: state.pop("optimizer"),
    "another group": lambda state: state["optimizer"].update({"x": 1}),
    "identity": lambda state: state.update(identity=["x"]),
    "steps": lambda state: state["history"].update(steps=True),
    "losses": lambda state: state["history"].update(losses={"loss": ["x"]}),
    "no step": lambda state: state["optimizer"].update({"optimizer.0.step": -1.0}),
    "infinite": lambda state: state["optimizer"].update({"optimizer.0.step": float("inf")}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_cannot_be_is_refused(change, tmp_path):
    module, optimizer = training()
    saved = written(tmp_path, (module, optimizer), module.state_dict())
    file = tmp_path / "000" / "checkpoint.json"
    state = json.loads(file.read_text())
    changed = CHANGES[change](state)
    file.write_text(json.dumps(changed if isinstance(changed, list) else state))
    with pytest.raises(CorruptFileError, match="checkpoint"):
        saved.load(*training())


def test_best_weights_of_another_shape_are_refused(tmp_path):
    saved = written(tmp_path, training(), torch.nn.Linear(4, 2).state_dict())
    with pytest.raises(CorruptFileError, match="best weights whose shapes differ"):
        saved.load(*training())


def test_second_moments_below_zero_are_refused(tmp_path):
    module, optimizer = training()
    optimizer.state[module.weight]["exp_avg_sq"][0, 0] = -1
    saved = written(tmp_path, (module, optimizer), module.state_dict())
    with pytest.raises(CorruptFileError, match="exp_avg_sq"):
        saved.load(*training())


@pytest.mark.parametrize("which", ["weights", "best weights"])
def test_weights_that_are_not_finite_are_refused(which, tmp_path):
    module, optimizer = training()
    best = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with torch.no_grad():
        (module.weight if which == "weights" else best["weight"])[0, 0] = torch.nan
    saved = written(tmp_path, (module, optimizer), best)
    with pytest.raises(CorruptFileError, match=f"{which} that are not finite"):
        saved.load(*training())
