"""Fine-tuning from Python: a request in, a model that predicts out."""

from __future__ import annotations

import warnings

from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.inference.model import Model, load


def run_finetune(request: FinetuneRequest) -> Model:
    """Fine-tune, or continue, and return the sealed model. What a person should know is warned of."""
    for told in run_finetune(request):
        if told.warning:
            warnings.warn(told.warning, stacklevel=2)
    return load(request.output / "model")
