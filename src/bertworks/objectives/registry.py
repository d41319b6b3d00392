"""The objectives by name: an encoder and a generator in, what the loop trains out.

An objective answers three things: how sentences are arranged and what is hidden when a batch is loaded (both without
torch, in `examples.arrangements`), and here what scores it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from bertworks.encoders.families import family_of
from bertworks.encoders.stack import Stack
from bertworks.errors import SettingsError
from bertworks.objectives.bilm import TwoWay
from bertworks.objectives.causal import NextPiece
from bertworks.objectives.mlm import Pretraining
from bertworks.objectives.permutation import Permuted
from bertworks.sampling.samplers import READS

# What the loop trains. Each has an `encoder`, `counts(batch)` and `forward(batch, scales, seeds) -> Loss`; of the parts
# of that loss the first is the one to choose models by. And for the model folder
#   kind    its heads, in the table of transformers' classes (`encoders.families.CLASS_ENDS`)
#   heads   its parts that have weights -> the kind of head whose names they have in a folder
Objective = Pretraining | NextPiece | TwoWay | Permuted

OBJECTIVES: dict[str, Callable[[Stack, torch.Generator | None], Objective]] = {
    "masked-next": partial(Pretraining, asks_pair=True),
    "masked-order": partial(Pretraining, asks_pair=True),
    "masked": partial(Pretraining, asks_pair=False),
    "next": NextPiece,
    "next-stream": NextPiece,
    "two-way": TwoWay,
    "permuted": Permuted,
    "permuted-stream": Permuted,
}
# The kinds of heads an objective needs; a family that has no names for one of them cannot learn by it.
_NEEDS: dict[str, tuple[str, ...]] = {
    "masked-next": ("masked", "pair"),
    "masked-order": ("masked", "pair"),
    "masked": ("masked",),
    "two-way": ("two-way",),
    "permuted": ("permuted",),
    "permuted-stream": ("permuted",),
}
# Families that no objective is for -> the verb that trains them.
_ELSEWHERE = {"static": "bertworks vectors train"}
# Those whose rows go on behind one another.
_STREAMS = tuple(name for name, reading in READS.items() if reading.arrangement == "streams")


def check_learns(family: str, objective: str) -> None:
    """Refuse an objective that the models of a family cannot learn by."""
    if family in _ELSEWHERE:
        verb = _ELSEWHERE[family]
        raise SettingsError(f"models of the family '{family}' do not learn by a recipe: {verb} makes them")
    known, goes_on = family_of(family).heads, family_of(family).goes_on
    fitting = [name for name in OBJECTIVES if all(kind in known for kind in _NEEDS.get(name, ()))]
    fitting = [name for name in fitting if goes_on or name not in _STREAMS]
    if objective in OBJECTIVES and objective not in fitting:
        raise SettingsError(
            f"models of the family '{family}' cannot learn by the objective '{objective}'; choose one of: "
            f"{', '.join(fitting)}"
        )
