"""The objectives by name: an encoder and a generator in, what the loop trains out.

An objective answers three things: how sentences are arranged and what is hidden when a batch is loaded (both without
torch, in `examples.arrangements`), and here what scores it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from bertworks.encoders.stack import Stack
from bertworks.objectives.causal import NextPiece
from bertworks.objectives.permuted import Permuted
from bertworks.objectives.pretraining import Pretraining

# What the loop trains. Each has an `encoder`, `counts(batch)` and `forward(batch, scales, seeds) -> Loss`; of the parts
# of that loss the first is the one to choose models by. And for the model folder
#   kind    its heads, in the table of transformers' classes (`encoders.families.CLASS_ENDS`)
#   heads   its parts that have weights -> the kind of head whose names they have in a folder
Objective = Pretraining | NextPiece | Permuted

OBJECTIVES: dict[str, Callable[[Stack, torch.Generator | None], Objective]] = {
    "masked-next": partial(Pretraining, asks_pair=True),
    "masked-order": partial(Pretraining, asks_pair=True),
    "masked": partial(Pretraining, asks_pair=False),
    "next": NextPiece,
    "permuted": Permuted,
}
