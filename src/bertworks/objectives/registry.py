"""The objectives by name: an encoder and a generator in, what the loop trains out.

An objective answers three things: how sentences are arranged and what is hidden when a batch is loaded (both without
torch, in `examples.arrangements`), and here what scores it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from bertworks.encoders.families import family_of
from bertworks.encoders.stack import Encoder
from bertworks.errors import SettingsError
from bertworks.objectives.bilm import BiLmObjective
from bertworks.objectives.causal import CausalLmObjective
from bertworks.objectives.mlm import MlmObjective
from bertworks.objectives.permutation import PermutationLmObjective
from bertworks.sampling.samplers import OBJECTIVE_INPUTS

# What the loop trains. Each has an `encoder`, `counts(batch)` and `forward(batch, scales, seeds) -> Loss`; of the parts
# of that loss the first is the one to choose models by. And for the model folder
#   kind    its heads, in the table of transformers' classes (`encoders.families.CLASS_ENDS`)
#   heads   its parts that have weights -> the kind of head whose names they have in a folder
Objective = MlmObjective | CausalLmObjective | BiLmObjective | PermutationLmObjective

OBJECTIVES: dict[str, Callable[[Encoder, torch.Generator | None], Objective]] = {
    "mlm-nsp": partial(MlmObjective, has_pair_head=True),
    "mlm-sop": partial(MlmObjective, has_pair_head=True),
    "mlm": partial(MlmObjective, has_pair_head=False),
    "causal": CausalLmObjective,
    "causal-stream": CausalLmObjective,
    "bilm": BiLmObjective,
    "permutation": PermutationLmObjective,
    "permutation-stream": PermutationLmObjective,
}
# The kinds of heads an objective needs; a family that has no names for one of them cannot learn by it.
_REQUIRED_HEADS: dict[str, tuple[str, ...]] = {
    "mlm-nsp": ("mlm", "nsp"),
    "mlm-sop": ("mlm", "nsp"),
    "mlm": ("mlm",),
    "bilm": ("bilm",),
    "permutation": ("permutation",),
    "permutation-stream": ("permutation",),
}
# Families that no objective is for -> the verb that trains them.
_TRAINING_COMMANDS = {"static": "bertworks vectors train"}
# Those whose rows go on behind one another.
_STREAM_OBJECTIVES = tuple(name for name, reading in OBJECTIVE_INPUTS.items() if reading.sampler == "streams")


def check_objective(family: str, objective: str) -> None:
    """Refuse an objective that the models of a family cannot learn by."""
    if family in _TRAINING_COMMANDS:
        verb = _TRAINING_COMMANDS[family]
        raise SettingsError(f"models of the family '{family}' do not learn by a recipe: {verb} makes them")
    known, goes_on = family_of(family).heads, family_of(family).can_carry_state
    fitting = [name for name in OBJECTIVES if all(kind in known for kind in _REQUIRED_HEADS.get(name, ()))]
    fitting = [name for name in fitting if goes_on or name not in _STREAM_OBJECTIVES]
    if objective in OBJECTIVES and objective not in fitting:
        raise SettingsError(
            f"models of the family '{family}' cannot learn by the objective '{objective}'; choose one of: "
            f"{', '.join(fitting)}"
        )
