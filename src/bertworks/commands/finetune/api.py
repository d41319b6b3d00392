"""Fine-tuning from Python: a FinetuneRequest in, a loaded Model out."""

from __future__ import annotations

import warnings

from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.inference.model import Model, load


def finetune(request: FinetuneRequest) -> Model:
    """Fine-tune, or resume, and return the fine-tuned model. Warnings of the run are issued as Python warnings."""
    for event in run_finetune(request):
        if event.warning:
            warnings.warn(event.warning, stacklevel=2)
    return load(request.output / "model")
