"""BERT from raw text to production. Importing this imports nothing heavy: names are loaded when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertworks.api import adapt as adapt
    from bertworks.api import compare as compare
    from bertworks.api import encode as encode
    from bertworks.api import evaluate as evaluate
    from bertworks.api import export as export
    from bertworks.api import finetune as finetune
    from bertworks.api import predict as predict
    from bertworks.api import prepare as prepare
    from bertworks.api import pretrain as pretrain
    from bertworks.api import serve as serve
    from bertworks.api import train_vocabulary as train_vocabulary
    from bertworks.errors import BertworksError as BertworksError
    from bertworks.errors import FolderError as FolderError
    from bertworks.errors import InputError as InputError
    from bertworks.errors import MissingDependencyError as MissingDependencyError
    from bertworks.errors import SettingsError as SettingsError
    from bertworks.estimators import BertClassifier as BertClassifier
    from bertworks.estimators import BertRegressor as BertRegressor
    from bertworks.estimators import BertTransformer as BertTransformer
    from bertworks.model import Model as Model
    from bertworks.model import load as load
    from bertworks.text.document import Document as Document
    from bertworks.vocabulary.tokenizer import Encoding as Encoding
    from bertworks.vocabulary.tokenizer import Tokenizer as Tokenizer

__version__ = "0.2.0.dev0"

# Each public name and its module.
_MODULES = {
    "BertClassifier": "estimators",
    "BertRegressor": "estimators",
    "BertTransformer": "estimators",
    "BertworksError": "errors",
    "Document": "text.document",
    "Encoding": "vocabulary.tokenizer",
    "FolderError": "errors",
    "InputError": "errors",
    "MissingDependencyError": "errors",
    "Model": "model",
    "SettingsError": "errors",
    "Tokenizer": "vocabulary.tokenizer",
    "adapt": "api",
    "compare": "api",
    "encode": "api",
    "evaluate": "api",
    "export": "api",
    "finetune": "api",
    "load": "model",
    "predict": "api",
    "prepare": "api",
    "pretrain": "api",
    "serve": "api",
    "train_vocabulary": "api",
}

__all__ = [
    "BertClassifier",
    "BertRegressor",
    "BertTransformer",
    "BertworksError",
    "Document",
    "Encoding",
    "FolderError",
    "InputError",
    "MissingDependencyError",
    "Model",
    "SettingsError",
    "Tokenizer",
    "adapt",
    "compare",
    "encode",
    "evaluate",
    "export",
    "finetune",
    "load",
    "predict",
    "prepare",
    "pretrain",
    "serve",
    "train_vocabulary",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bertworks' has no attribute '{name}'; it has {', '.join(__all__)}")
    return getattr(import_module(f"bertworks.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
