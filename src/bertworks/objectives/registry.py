"""All pretraining objectives by name."""

from __future__ import annotations

from bertworks.encoders.families import family_of
from bertworks.errors import SettingsError
from bertworks.objectives.bilm import BILM
from bertworks.objectives.causal import CAUSAL, CAUSAL_STREAM
from bertworks.objectives.mlm import MLM, MLM_NSP, MLM_SOP
from bertworks.objectives.objective import Objective
from bertworks.objectives.permutation import PERMUTATION, PERMUTATION_STREAM
from bertworks.objectives.rtd import RTD

OBJECTIVES = {
    objective.name: objective
    for objective in (
        MLM_NSP,
        MLM_SOP,
        MLM,
        CAUSAL,
        CAUSAL_STREAM,
        BILM,
        PERMUTATION,
        PERMUTATION_STREAM,
        RTD,
    )
}


def objective_of(name: str) -> Objective:
    """Return the objective of that name."""
    if name not in OBJECTIVES:
        raise SettingsError(f"there is no objective '{name}'; choose one of: {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]


def check_objective(model_type: str, objective: str) -> None:
    """Refuse an objective that does not exist, or that a family cannot be trained with."""
    family = family_of(model_type)
    objective_of(objective)  # refuses an unknown name
    if family.training_command:
        raise SettingsError(
            f"a model of the family '{model_type}' has no pretraining objective; train it with "
            f"`{family.training_command}`"
        )
    supported = [
        candidate.name
        for candidate in OBJECTIVES.values()
        if family.heads.keys() >= set(candidate.required_heads)
        and (family.can_carry_state or not candidate.is_stateful)
    ]
    if objective not in supported:
        raise SettingsError(
            f"a model of the family '{model_type}' cannot be trained with the objective '{objective}'; choose one of: "
            f"{', '.join(supported)}"
        )
