"""SOTAlign with a teacher whose plan is unbalanced."""

import pytest

from congruence.errors import ParameterError
from congruence.train import SOTAlign

pytest.importorskip("torch", reason="training needs torch")
pytestmark = pytest.mark.filterwarnings("ignore::congruence.errors.ConvergenceWarning")

QUICK = {"n_components": 16, "max_steps": 20, "learning_rate": 3e-3, "validate_every": 20, "max_iter": 30}


@pytest.mark.parametrize("rows", [{}, {"batch_size": 64}])
def test_a_teacher_whose_plan_is_unbalanced(world, rows):
    """The same teacher, another plan; at ρ = ∞ the balanced one.

    Both where rows come again each step and where they do not.
    """

    def fit(**options):
        method = SOTAlign(divergence_weight=0.1, **QUICK, **rows, **options)
        return method.fit(*world.pairs, unpaired=world.unpaired, verbose=False).facts_["history"]["losses"]

    balanced, endless, some = fit(), fit(rho_teacher=float("inf")), fit(rho_teacher=0.05)
    assert balanced == endless
    assert some["klot"][0] != balanced["klot"][0]
    assert some["klot"][-1] < some["klot"][0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rho_teacher": 0}, "rho_teacher=0"),
        ({"rho_teacher": float("nan")}, "rho_teacher=nan"),
        ({"rho_teacher": 0.1, "divergence": "cka"}, "rho_teacher=0.1 with divergence='cka'"),
    ],
)
def test_a_strength_that_means_nothing(world, options, message):
    with pytest.raises(ParameterError, match=message):
        SOTAlign(**options, **QUICK).fit(*world.pairs, unpaired=world.unpaired, verbose=False)
