"""The served models: names and folders in, loaded models with their capabilities out."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bertworks.embeddings.pooling import Pooling
from bertworks.embeddings.sentence_settings import read_dimensions, read_prompts
from bertworks.embeddings.vectors import resolve_window_rule, stored_window_rule
from bertworks.engines.batching import TOKEN_BUDGET
from bertworks.engines.graph_encoder import GraphEncoder
from bertworks.engines.torch_engine import TorchEngine
from bertworks.errors import InputError, SettingsError
from bertworks.inference.model import LoadedModel, load
from bertworks.models.provenance import display_name
from bertworks.packages import packaged_model
from bertworks.sampling.windows import WindowRule
from bertworks.serving.queues import EmbedQueue, PredictQueue, UnbatchedQueue
from bertworks.tasks.contract import ExplainableTask, LabelledTask, Task

# A sentence of each language that the examples of the page have.
_LANGUAGE_SAMPLES = {
    "en": "The weather was fine this morning, so we walked along the river and talked about the new film.",
    "zh": "今天早上天气很好，我们沿着河边散步，聊起了那部新电影。",
}
# A name is used in URLs, where it may have letters of any script, and in metric labels.
_NAME = re.compile(r"[^\W_][\w.-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A loaded model under its name, and its queues.

    Its folder is read only once: it may be deleted while the model is served.
    """

    name: str
    model: LoadedModel
    pooling: Pooling
    stored_window_rule: WindowRule | None
    embed_queue: EmbedQueue
    unbatched_queue: UnbatchedQueue
    predict_queue: PredictQueue | None
    prompts: Mapping[str, str] = field(default_factory=dict)
    dimensions: tuple[int, ...] = ()
    created: int = 0

    @property
    def task(self) -> Task | None:
        return None if self.predict_queue is None else self.predict_queue.predictor.module.task

    @cached_property
    def capabilities(self) -> tuple[str, ...]:
        """The endpoints that the model supports."""
        supported = {
            "predict": self.predict_queue is not None,
            "fill-mask": self.model.mask_filler is not None,
            "generate": self.model.text_generator is not None,
            "next": self.model.can_predict_words,
            "embed": True,
            "tokenize": True,
            "attention": self.model.encoder.has_attention,
            "explain": self.is_inspectable and isinstance(self.task, ExplainableTask),
        }
        return tuple(name for name, is_supported in supported.items() if is_supported)

    @property
    def is_inspectable(self) -> bool:
        """Whether embeddings and gradients are accessible: not in an exported graph."""
        return not isinstance(self.model.encoder, GraphEncoder)

    def missing_capability_message(self, capability: str) -> str:
        """Return the error message for an endpoint that the model does not support."""
        supported = ", ".join(self.capabilities)
        if capability != "attention":
            return f"this model does not support {capability}; it supports {supported}"
        reason = "its encoder has no attention" if self.is_inspectable else "it is an exported graph"
        return f"this model does not support attention ({reason}); it supports {supported}"

    @property
    def max_length(self) -> int:
        """Maximum tokens per sequence; longer texts are split into windows."""
        if self.predict_queue is not None:
            return self.predict_queue.predictor.window_rule.max_length
        return self.embed_window_rule(self.pooling, truncate=False).max_length

    def embed_window_rule(self, pooling: Pooling, truncate: bool) -> WindowRule:
        """Return the window rule for texts to embed."""
        return resolve_window_rule(pooling, self.model.encoder.config.max_length, truncate, self.stored_window_rule)

    @cached_property
    def languages(self) -> list[str] | None:
        """The languages of the folder's metadata, else those of the samples that the vocabulary reads; None if none."""
        stated = self.model.metadata.get("languages")
        read = [code for code, text in _LANGUAGE_SAMPLES.items() if not self.model.coverage_warnings(text)]
        return list(stated) if stated else read or None

    @cached_property
    def num_parameters(self) -> int | None:
        """The number of weights of the encoder; None for an exported graph, which does not tell."""
        if not self.is_inspectable:
            return None
        return sum(parameter.numel() for parameter in self.model.encoder.parameters())

    def to_dict(self) -> dict[str, Any]:
        task = self.task
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "bertworks",
            "name": self.name,
            "task": None if task is None else task.name,
            "capabilities": list(self.capabilities),
            "input_fields": None if task is None else [list(fields.names) for fields in task.input_fields],
            "labels": list(task.labels) if isinstance(task, LabelledTask) else None,
            "max_length": self.max_length,
            "dimensions": list(self.dimensions),
            "languages": self.languages,
            "num_parameters": self.num_parameters,
            "num_layers": self.model.encoder.config.num_hidden_layers,
            "hidden_size": self.model.encoder.config.hidden_size,
            "scores": _main_scores(self.model.metadata.get("scores")),
            "description": _describe(self),
        }


def load_served_model(
    name: str,
    folder: str | Path,
    pause: Callable[[], None],
    budget: int = TOKEN_BUDGET,
    engine: str | None = None,
    precision: str | None = None,
) -> ServedModel:
    """Load a model; unbatched work calls `pause` between its parts."""
    model = load(folder, engine=engine, precision=precision)
    model.new_coverage()  # builds the table of its vocabulary now, not during the first request
    return ServedModel(
        name=name,
        model=model,
        pooling=model.pooling,
        stored_window_rule=stored_window_rule(model.metadata),
        embed_queue=EmbedQueue(name, TorchEngine(model.encoder, model.tokenizer, budget)),
        unbatched_queue=UnbatchedQueue(name, pause),
        predict_queue=None if model.predictor is None else PredictQueue(name, model.predictor, budget),
        prompts=read_prompts(model.folder),
        dimensions=read_dimensions(model.folder),
        created=int(model.folder.stat().st_mtime),
    )


def named_folders(arguments: Sequence[str]) -> dict[str, str]:
    """Map names to model folders or hub names; an argument is NAME=FOLDER, or FOLDER under its display name.

    A run folder stands for the model in it, and so does the name of a packaged model.
    """
    folders: dict[str, str] = {}
    for argument in arguments:
        name, equals, folder = argument.partition("=")
        if not equals or Path(argument).exists():
            name, folder = "", argument
        path = Path(folder)
        if not (path / "config.json").is_file() and (path / "model" / "config.json").is_file():
            folder = str(path / "model")
        name = unicodedata.normalize("NFC", name or display_name(folder))  # as clients write it
        check_name(name, argument)
        folder = str(packaged_model(folder) or folder)
        if name in folders:
            raise SettingsError(f"two models have the name '{name}'; give each its own: NAME=FOLDER")
        folders[name] = folder
    return folders


def check_name(name: str, argument: str) -> None:
    """Raise InputError for a name that cannot be used in a URL."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{argument}: '{name}' cannot be the name of a model; use up to 64 letters, digits, dots, hyphens and "
            f"underscores: NAME=FOLDER"
        )


def _describe(served_model: ServedModel) -> str:
    config, metadata = served_model.model.encoder.config, served_model.model.metadata
    parts = [
        f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{served_model.model.tokenizer.vocab_size:,} tokens"
    ]
    if served_model.task is not None:
        base = f" from {metadata['base']}" if "base" in metadata else ""
        parts.append(f"fine-tuned for {served_model.task.name}{base}")
    elif "objective" in metadata:
        parts.append(f"pretrained ({metadata['objective']})")
    elif served_model.pooling.is_explicit:
        parts.append("sentence embeddings")
    parts += _format_scores(metadata.get("scores"))
    return "; ".join(parts)


def _format_scores(scores: object) -> list[str]:
    """Return the dev metrics, or metrics without a split, as one string in a list."""
    metrics = _main_scores(scores)
    return [", ".join(f"{name} {value:.3f}" for name, value in metrics.items())] if metrics else []


def _main_scores(scores: object) -> dict[str, float]:
    """Return the dev metrics of a folder, or its metrics without a split."""
    metrics = scores.get("dev", scores) if isinstance(scores, Mapping) else None
    if not isinstance(metrics, Mapping):
        return {}
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
