"""A model put to use: the name of a folder or of a model on the hub in, an object that answers out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bertworks.datasets.files import Line
from bertworks.embeddings.vectors import embed
from bertworks.encoders.stack import BertSizes, Stack
from bertworks.engines.graph_encoder import Runtime
from bertworks.engines.runtimes import RUNTIMES, TORCH, engine_of
from bertworks.errors import FolderError
from bertworks.inference.fill_mask import Filled, Filler
from bertworks.inference.finetuned import is_tuned, predictor_of, task_in
from bertworks.inference.generate import Continuer, Drawing, Generated, NextWord
from bertworks.inference.graph_models import GraphMasked, exported_folder, graph_head, parts_through
from bertworks.inference.next_word import Neighbours
from bertworks.inference.predictor import Predictor
from bertworks.inference.translator import searching_with, translations
from bertworks.models.folder import ModelFolder, encoder_of, read_folder
from bertworks.models.hub import fetch
from bertworks.models.tensor_names import LoadReport, load_into
from bertworks.objectives.bilm import two_way_head
from bertworks.objectives.heads import MaskedHead
from bertworks.objectives.large_softmax import Softmax
from bertworks.tasks.beam_search import Searching
from bertworks.tasks.translate import Translate
from bertworks.vocabulary.tokenizer import Tokenizer

H = TypeVar("H", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model. `masked` is the head that fills blanks, `two_way` the one that tells neighbours both ways, if the
    folder has one; `told` is its bertworks.json.

    `report` says which tensors were loaded into the encoder and that head, newly initialised, or left unused.
    """

    folder: Path
    encoder: Stack
    tokenizer: Tokenizer
    masked: MaskedHead | None
    report: LoadReport
    told: dict[str, Any] = field(default_factory=dict)
    predictor: Predictor | None = None
    two_way: Softmax | None = None

    def embed(self, texts: Iterable[str], pooling: str | None = None) -> npt.NDArray[np.float32]:
        """Return one vector a text: mean, first or max over its pieces; as the folder says unless `pooling` does."""
        return embed(self.encoder, self.tokenizer, self.folder, texts, pooling)

    def predict(self, texts: Iterable[str | Sequence[str] | Mapping[str, Any]]) -> list[Any]:
        """Return the prediction of each text, by the task that the model was fine-tuned for.

        A text is a string; a pair, two of them; or a mapping with what the task reads, such as {"question": …,
        "context": …} or {"prompt": …, "choices": […]}.
        """
        if self.predictor is None:
            raise FolderError(f"{self.folder} is not fine-tuned for a task; make one with `bertworks finetune`")
        lines = (Line(_fields(text), f"text {number}") for number, text in enumerate(texts))
        cases = self.predictor.module.task.unlabelled(lines, {})
        return [prediction for _, prediction in self.predictor.predict(cases)]

    def translate(self, texts: Iterable[str], searching: Searching | None = None) -> list[str]:
        """Return the translation of each text; the search is the folder's own unless another is given."""
        return [one.text for one in translations(self.translator(searching), texts)]

    def translator(self, searching: Searching | None = None) -> Predictor:
        """Return what translates, with another search if one is given."""
        if self.predictor is None or not isinstance(self.predictor.module.task, Translate):
            raise FolderError(f"{self.folder} cannot translate; make a model with `bertworks finetune translate`")
        return self.predictor if searching is None else searching_with(self.predictor, searching)

    def fill(self, text: str, top: int = 5) -> Filled:
        """Return the `top` candidates for each [MASK] in `text`, and the best ways to fill all of them."""
        if self.filler is None:
            raise FolderError(
                f"{self.folder} has no head for filling blanks (it is an encoder only); choose a pretrained model, "
                f"such as the one `bertworks pretrain` writes"
            )
        return self.filler.fill(text, top)

    def generate(self, text: str, drawing: Drawing = Drawing()) -> Generated:
        """Go on with a text; only a model that reads to the left can."""
        if self.continuer is None:
            raise FolderError(
                f"{self.folder} cannot go on with a text: it reads both ways, or a graph computes it; choose the "
                f"folder of a left-to-right model, such as one pretrained by the recipe gpt"
            )
        return self.continuer.generate(text, drawing)

    def next_words(self, text: str, top: int = 5, backward: bool = False) -> tuple[NextWord, ...]:
        """Return the likeliest words behind a text, or before it; a model that fills blanks puts one there."""
        if self.filler is not None:
            return self.filler.beside(text, top, backward)
        if self.neighbours is not None:
            return self.neighbours.next_words(text, top, backward)
        if self.continuer is None:
            raise FolderError(f"{self.folder} has no head that tells pieces (it is an encoder only); pretrain it")
        if backward:
            raise FolderError(
                f"{self.folder} reads to the left and cannot tell what stood before; choose a model that fills blanks"
            )
        return self.continuer.next_words(text, top)

    @property
    def continuer(self) -> Continuer | None:
        """What goes on with a text, if the model can."""
        if self.masked is not None or self.encoder.own_reads != "left":
            return None
        return Continuer(self.encoder, self.tokenizer)

    @property
    def tells_words(self) -> bool:
        """Whether it can tell the next word of a text, in one way or another."""
        return any(one is not None for one in (self.filler, self.neighbours, self.continuer))

    @property
    def neighbours(self) -> Neighbours | None:
        """What tells the words behind a text and before it by reading it both ways, if the model can."""
        return None if self.two_way is None else Neighbours(self.encoder, self.two_way, self.tokenizer)

    @property
    def filler(self) -> Filler | None:
        """What fills blanks, if the model can."""
        if self.masked is None:
            return None
        encoder = self.masked.encoder if isinstance(self.masked, GraphMasked) else self.encoder
        return Filler(encoder, self.masked, self.tokenizer)

    @property
    def has_pooler(self) -> bool:
        """Whether the summary of a row is the model's own, and not of a pooler that was drawn anew."""
        return not any(".pooler." in name for name in self.report.newly_initialised)


def load(name: str | Path, revision: str | None = None, engine: str | None = None) -> Model:
    """Load a model: a folder, or a name on the hub, which is downloaded once and then taken from the cache.

    `engine` is what computes it: torch, onnx or openvino; the one that a folder was exported for, else torch, if none
    is named.
    """
    path = fetch(str(name), revision)
    engine, is_exported = engine_of(path, engine)
    if is_exported:
        return _through(RUNTIMES[engine].open(path), exported_folder(path), LoadReport((), (), ()))
    folder = read_folder(path)
    model = _in_torch(folder)
    if engine == TORCH:
        return model
    head = graph_head(model.masked, model.predictor)
    return _through(RUNTIMES[engine].of(model.encoder, head, model.has_pooler), folder, model.report)


def _through(runtime: Runtime, folder: ModelFolder, report: LoadReport) -> Model:
    encoder, masked, predictor = parts_through(runtime, folder)
    return Model(folder.path, encoder, folder.tokenizer, masked, report, folder.told, predictor)


def _in_torch(folder: ModelFolder) -> Model:
    encoder, report = encoder_of(folder)
    encoder.eval()
    masked, report = _head_of(folder, "masked", MaskedHead, report)
    two_way, report = _head_of(folder, "two-way", two_way_head, report)
    if two_way is None:
        two_way, report = _head_of(folder, "two-way-table", two_way_head, report)
    predictor = None
    if is_tuned(folder):
        predictor = predictor_of(folder, encoder, task_in(folder))
        head = load_into(predictor.module.head, folder.tensors, predictor.module.head_names)
        report = _joined(report, head)
    return Model(folder.path, encoder, folder.tokenizer, masked, report, folder.told, predictor, two_way)


def _head_of(
    folder: ModelFolder, kind: str, make: Callable[[BertSizes], H], report: LoadReport
) -> tuple[H | None, LoadReport]:
    """Return a head of pretraining if the folder has one of that kind, and what became of all tensors so far."""
    table = folder.family.heads.get(kind)
    if table is None or not all(theirs in folder.tensors for names in table.values() for theirs in names):
        return None, report
    with torch.device("meta"):
        head = make(folder.sizes)
    report = _joined(report, load_into(head, folder.tensors, table))
    return head.eval(), report


def _fields(text: str | Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(text, Mapping):
        return dict(text)
    if isinstance(text, str):
        return {"text": text}
    return dict(zip(("sentence1", "sentence2"), text, strict=True))


def _joined(encoder: LoadReport, head: LoadReport) -> LoadReport:
    """Return what became of the tensors of both: what the head took is not unused."""
    unused = tuple(name for name in encoder.unused if name not in head.loaded)
    return replace(encoder, loaded=encoder.loaded + head.loaded, unused=unused)
