"""The models that are served: names and folders in, loaded models with what each can do out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.embeddings.pooling import Pooling, read_pooling
from bertworks.embeddings.vectors import read_window_rule, resolve_window_rule
from bertworks.engines.batching import TOKEN_BUDGET
from bertworks.engines.graph_encoder import GraphEncoder
from bertworks.engines.torch_engine import TorchEngine
from bertworks.errors import InputError, SettingsError
from bertworks.inference.attribution import EXPLAINABLE_TASKS
from bertworks.inference.model import Model, load
from bertworks.models.provenance import display_name
from bertworks.sampling.windows import WindowRule
from bertworks.serving.queues import EmbedQueue, PredictQueue, UnbatchedQueue

# A name stands in addresses and in metrics, so it is plain.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model under its name, and the lanes that compute for it.

    What its folder says is read once: the folder may be gone while the model goes on.
    """

    name: str
    model: Model
    pooling: Pooling
    stored_window_rule: WindowRule | None
    embed_queue: EmbedQueue
    unbatched_queue: UnbatchedQueue
    predict_queue: PredictQueue | None

    @property
    def task(self) -> str | None:
        return None if self.predict_queue is None else self.predict_queue.predictor.module.task.name

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What may be asked of the model."""
        able = {
            "predict": self.predict_queue is not None,
            "fill": self.model.mask_filler is not None,
            "generate": self.model.text_generator is not None,
            "next": self.model.can_predict_words,
            "embed": True,
            "tokenize": True,
            "attention": self.model.encoder.has_attention,
            "explain": self.is_inspectable and self.task in EXPLAINABLE_TASKS,
        }
        return tuple(name for name, is_able in able.items() if is_able)

    @property
    def is_inspectable(self) -> bool:
        """Whether the model shows its inside. One that a runtime computes does not."""
        return not isinstance(self.model.encoder, GraphEncoder)

    def missing_capability_message(self, capability: str) -> str:
        """Return why that may not be asked."""
        why = ""
        if capability == "attention":
            inside = "its pieces do not read one another by attention" if self.is_inspectable else "a graph computes it"
            why = f" ({inside})"
        return f"this model cannot {capability}{why}; it can {', '.join(self.capabilities)}"

    @property
    def max_length(self) -> int:
        """How many pieces the model reads at once; longer texts are read in windows."""
        if self.predict_queue is not None:
            return self.predict_queue.predictor.window_rule.max_length
        return self.embed_window_rule(self.pooling, truncate=False).max_length

    def embed_window_rule(self, pooling: Pooling, truncate: bool) -> WindowRule:
        """Return how long texts are cut that become vectors."""
        return resolve_window_rule(
            pooling, self.model.encoder.config.max_position_embeddings, truncate, self.stored_window_rule
        )

    def to_dict(self) -> dict[str, Any]:
        task = None if self.predict_queue is None else self.predict_queue.predictor.module.task
        labels = getattr(task, "label_names", None)
        return {
            "name": self.name,
            "task": self.task,
            "can": list(self.capabilities),
            "labels": None if labels is None else list(labels),
            "length": self.max_length,
            "languages": None,
            "description": _describe(self),
        }


def load_served_model(
    name: str, folder: str | Path, pause: Callable[[], None], budget: int = TOKEN_BUDGET, engine: str | None = None
) -> ServedModel:
    """Load a model; `pause` is what long work calls between its parts."""
    model = load(folder, engine=engine)
    predict = None if model.predictor is None else PredictQueue(name, model.predictor, budget)
    embed = EmbedQueue(name, TorchEngine(model.encoder, model.tokenizer, budget))
    pooling, stored = read_pooling(model.folder), read_window_rule(model.folder)
    return ServedModel(name, model, pooling, stored, embed, UnbatchedQueue(name, pause), predict)


def named_folders(arguments: Sequence[str]) -> dict[str, str]:
    """Return the folder, or the hub's name, of each model; an argument is NAME=FOLDER or a FOLDER with a telling name.

    A run folder stands for the model in it.
    """
    found: dict[str, str] = {}
    for argument in arguments:
        name, told, folder = argument.partition("=")
        if not told or Path(argument).exists():
            name, folder = "", argument
        path = Path(folder)
        if not (path / "config.json").is_file() and (path / "model" / "config.json").is_file():
            folder = str(path / "model")
        name = name or display_name(folder)
        check_name(name, argument)
        if name in found:
            raise SettingsError(f"two models are called '{name}'; give each a name of its own: NAME=FOLDER")
        found[name] = folder
    return found


def check_name(name: str, argument: str) -> None:
    """Refuse a name that cannot stand in an address."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{argument}: '{name}' cannot be the name of a model; use up to 64 letters, digits, dots, hyphens and "
            f"underscores: NAME=FOLDER"
        )


def _describe(served_model: ServedModel) -> str:
    sizes, told = served_model.model.encoder.config, served_model.model.metadata
    about = [
        f"{sizes.num_hidden_layers} layers of width {sizes.hidden_size}, {served_model.model.tokenizer.vocab_size:,} pieces"
    ]
    if served_model.task is not None:
        about.append(f"fine-tuned to {served_model.task}" + (f" from {told['base']}" if "base" in told else ""))
    elif "objective" in told:
        about.append(f"pretrained ({told['objective']})")
    elif served_model.pooling.is_explicit:
        about.append("sentence vectors")
    about += _format_scores(told.get("scores"))
    return "; ".join(about)


def _format_scores(scores: object) -> list[str]:
    """Return the figures of dev, or those that stand there without a split."""
    if not isinstance(scores, Mapping):
        return []
    figures = scores.get("dev", scores)
    if not isinstance(figures, Mapping):
        return []
    return [", ".join(f"{name} {value:.3f}" for name, value in figures.items() if isinstance(value, int | float))]
