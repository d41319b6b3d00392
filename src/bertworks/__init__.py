"""BERT from raw text to production. Importing this imports nothing heavy: names are fetched when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertworks.commands.finetune.api import finetune as finetune
    from bertworks.commands.finetune.recipe import FinetuneRecipe as Tuning
    from bertworks.commands.finetune.request import FinetuneRequest as FinetuneRequest
    from bertworks.errors import BertworksError as BertworksError
    from bertworks.inference.model import Model as Model
    from bertworks.inference.model import load as load
    from bertworks.text.document import Document as Document
    from bertworks.vocabulary.tokenizer import Encoding as Encoding
    from bertworks.vocabulary.tokenizer import Tokenizer as Tokenizer

__version__ = "0.1.0"

# Each public name and the module that holds it.
_LAZY_MODULES = {
    "BertworksError": "errors",
    "Document": "text.document",
    "Encoding": "vocabulary.tokenizer",
    "FinetuneRequest": "commands.finetune.request",
    "Model": "inference.model",
    "Tokenizer": "vocabulary.tokenizer",
    "Tuning": "commands.finetune.recipe",
    "finetune": "commands.finetune.api",
    "load": "inference.model",
}

__all__ = [
    "BertworksError",
    "Document",
    "Encoding",
    "FinetuneRequest",
    "Model",
    "Tokenizer",
    "Tuning",
    "finetune",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module 'bertworks' has no attribute '{name}'; it offers {', '.join(__all__)}")
    return getattr(import_module(f"bertworks.{_LAZY_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
