"""The models that are served: names and folders in, loaded models with what each can do out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.embeddings.pooling import Pooling, pooling_of
from bertworks.embeddings.vectors import stored_rule, window_rule
from bertworks.engines.batching import BUDGET
from bertworks.engines.graph_encoder import GraphEncoder
from bertworks.engines.torch_engine import TorchEngine
from bertworks.errors import InputError, SettingsError
from bertworks.inference.attribution import CASES
from bertworks.inference.model import Model, load
from bertworks.models.provenance import usual_name
from bertworks.sampling.windows import WindowRule
from bertworks.serving.queues import EmbedLane, PredictLane, WholeLane

# A name stands in addresses and in metrics, so it is plain.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded model under its name, and the lanes that compute for it.

    What its folder says is read once: the folder may be gone while the model goes on.
    """

    name: str
    model: Model
    pooling: Pooling
    stored: WindowRule | None
    embed: EmbedLane
    whole: WholeLane
    predict: PredictLane | None

    @property
    def task(self) -> str | None:
        return None if self.predict is None else self.predict.predictor.module.task.name

    @property
    def can(self) -> tuple[str, ...]:
        """What may be asked of the model."""
        able = {
            "predict": self.predict is not None,
            "fill": self.model.filler is not None,
            "generate": self.model.continuer is not None,
            "next": self.model.tells_words,
            "embed": True,
            "tokenize": True,
            "attention": self.model.encoder.attends,
            "explain": self.is_open and self.task in CASES,
        }
        return tuple(name for name, is_able in able.items() if is_able)

    @property
    def is_open(self) -> bool:
        """Whether the model shows its inside. One that a runtime computes does not."""
        return not isinstance(self.model.encoder, GraphEncoder)

    def cannot(self, able: str) -> str:
        """Return why that may not be asked."""
        why = ""
        if able == "attention":
            inside = "its pieces do not read one another by attention" if self.is_open else "a graph computes it"
            why = f" ({inside})"
        return f"this model cannot {able}{why}; it can {', '.join(self.can)}"

    @property
    def length(self) -> int:
        """How many pieces the model reads at once; longer texts are read in windows."""
        if self.predict is not None:
            return self.predict.predictor.rule.length
        return self.embed_rule(self.pooling, truncate=False).length

    def embed_rule(self, pooling: Pooling, truncate: bool) -> WindowRule:
        """Return how long texts are cut that become vectors."""
        return window_rule(pooling, self.model.encoder.sizes.positions, truncate, self.stored)

    def as_json(self) -> dict[str, Any]:
        task = None if self.predict is None else self.predict.predictor.module.task
        labels = getattr(task, "labels", None)
        return {
            "name": self.name,
            "task": self.task,
            "can": list(self.can),
            "labels": None if labels is None else list(labels),
            "length": self.length,
            "languages": None,
            "description": _described(self),
        }


def load_served(
    name: str, folder: str | Path, pause: Callable[[], None], budget: int = BUDGET, engine: str | None = None
) -> Served:
    """Load a model; `pause` is what long work calls between its parts."""
    model = load(folder, engine=engine)
    predict = None if model.predictor is None else PredictLane(name, model.predictor, budget)
    embed = EmbedLane(name, TorchEngine(model.encoder, model.tokenizer, budget))
    pooling, stored = pooling_of(model.folder), stored_rule(model.folder)
    return Served(name, model, pooling, stored, embed, WholeLane(name, pause), predict)


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
        name = name or usual_name(folder)
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


def _described(served: Served) -> str:
    sizes, told = served.model.encoder.sizes, served.model.told
    about = [f"{sizes.num_layers} layers of width {sizes.width}, {served.model.tokenizer.size:,} pieces"]
    if served.task is not None:
        about.append(f"fine-tuned to {served.task}" + (f" from {told['base']}" if "base" in told else ""))
    elif "objective" in told:
        about.append(f"pretrained ({told['objective']})")
    elif served.pooling.told:
        about.append("sentence vectors")
    about += _scores(told.get("scores"))
    return "; ".join(about)


def _scores(told: object) -> list[str]:
    """Return the figures of dev, or those that stand there without a split."""
    if not isinstance(told, Mapping):
        return []
    figures = told.get("dev", told)
    if not isinstance(figures, Mapping):
        return []
    return [", ".join(f"{name} {value:.3f}" for name, value in figures.items() if isinstance(value, int | float))]
