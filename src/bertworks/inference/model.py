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

from bertworks.datasets.files import Record
from bertworks.embeddings.vectors import embed
from bertworks.encoders.stack import BertConfig, Encoder
from bertworks.engines.graph_encoder import Runtime
from bertworks.engines.runtimes import RUNTIMES, TORCH, choose_engine
from bertworks.errors import FolderError
from bertworks.inference.fill_mask import FillMaskResult, MaskFiller
from bertworks.inference.finetuned import build_predictor, is_finetuned, read_task
from bertworks.inference.generate import GenerationConfig, GenerationResult, NextWord, TextGenerator
from bertworks.inference.graph_models import GraphMlmHead, graph_head, load_graph_parts, read_exported_folder
from bertworks.inference.next_word import BilmWordPredictor
from bertworks.inference.predictor import Predictor
from bertworks.inference.translator import translate_texts, with_search_settings
from bertworks.models.folder import ModelFolder, load_encoder, read_folder
from bertworks.models.hub import fetch
from bertworks.models.tensor_names import LoadReport, load_into
from bertworks.objectives.bilm import create_bilm_head
from bertworks.objectives.heads import MlmHead
from bertworks.objectives.large_softmax import Softmax
from bertworks.tasks.beam_search import BeamSearchSettings
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
    encoder: Encoder
    tokenizer: Tokenizer
    mlm_head: MlmHead | None
    report: LoadReport
    metadata: dict[str, Any] = field(default_factory=dict)
    predictor: Predictor | None = None
    bilm_head: Softmax | None = None

    def encode(self, texts: Iterable[str], pooling: str | None = None) -> npt.NDArray[np.float32]:
        """Return one vector a text: mean, first or max over its pieces; as the folder says unless `pooling` does."""
        return embed(self.encoder, self.tokenizer, self.folder, texts, pooling)

    def predict(self, texts: Iterable[str | Sequence[str] | Mapping[str, Any]]) -> list[Any]:
        """Return the prediction of each text, by the task that the model was fine-tuned for.

        A text is a string; a pair, two of them; or a mapping with what the task reads, such as {"question": …,
        "context": …} or {"prompt": …, "choices": […]}.
        """
        if self.predictor is None:
            raise FolderError(f"{self.folder} is not fine-tuned for a task; make one with `bertworks finetune`")
        lines = (Record(_fields(text), f"text {number}") for number, text in enumerate(texts))
        cases = self.predictor.module.task.read_unlabelled(lines, {})
        return [prediction for _, prediction in self.predictor.predict(cases)]

    def translate(self, texts: Iterable[str], search_settings: BeamSearchSettings | None = None) -> list[str]:
        """Return the translation of each text; the search is the folder's own unless another is given."""
        return [one.text for one in translate_texts(self.translator(search_settings), texts)]

    def translator(self, search_settings: BeamSearchSettings | None = None) -> Predictor:
        """Return what translates, with another search if one is given."""
        if self.predictor is None or not isinstance(self.predictor.module.task, Translate):
            raise FolderError(f"{self.folder} cannot translate; make a model with `bertworks finetune translate`")
        return self.predictor if search_settings is None else with_search_settings(self.predictor, search_settings)

    def fill_mask(self, text: str, top_k: int = 5) -> FillMaskResult:
        """Return the `top` candidates for each [MASK] in `text`, and the best ways to fill all of them."""
        if self.mask_filler is None:
            raise FolderError(
                f"{self.folder} has no head for filling blanks (it is an encoder only); choose a pretrained model, "
                f"such as the one `bertworks pretrain` writes"
            )
        return self.mask_filler.fill_mask(text, top_k)

    def generate(self, text: str, generation_config: GenerationConfig = GenerationConfig()) -> GenerationResult:
        """Go on with a text; only a model that reads to the left can."""
        if self.text_generator is None:
            raise FolderError(
                f"{self.folder} cannot go on with a text: it reads both ways, or a graph computes it; choose the "
                f"folder of a left-to-right model, such as one pretrained by the recipe gpt"
            )
        return self.text_generator.generate(text, generation_config)

    def next_words(self, text: str, top_k: int = 5, backward: bool = False) -> tuple[NextWord, ...]:
        """Return the likeliest words behind a text, or before it; a model that fills blanks puts one there."""
        if self.mask_filler is not None:
            return self.mask_filler.next_words(text, top_k, backward)
        if self.bilm_predictor is not None:
            return self.bilm_predictor.next_words(text, top_k, backward)
        if self.text_generator is None:
            raise FolderError(f"{self.folder} has no head that tells pieces (it is an encoder only); pretrain it")
        if backward:
            raise FolderError(
                f"{self.folder} reads to the left and cannot tell what stood before; choose a model that fills blanks"
            )
        return self.text_generator.next_words(text, top_k)

    @property
    def text_generator(self) -> TextGenerator | None:
        """What goes on with a text, if the model can."""
        if self.mlm_head is not None or self.encoder.attention != "left":
            return None
        return TextGenerator(self.encoder, self.tokenizer)

    @property
    def can_predict_words(self) -> bool:
        """Whether it can tell the next word of a text, in one way or another."""
        return any(one is not None for one in (self.mask_filler, self.bilm_predictor, self.text_generator))

    @property
    def bilm_predictor(self) -> BilmWordPredictor | None:
        """What tells the words behind a text and before it by reading it both ways, if the model can."""
        return None if self.bilm_head is None else BilmWordPredictor(self.encoder, self.bilm_head, self.tokenizer)

    @property
    def mask_filler(self) -> MaskFiller | None:
        """What fills blanks, if the model can."""
        if self.mlm_head is None:
            return None
        encoder = self.mlm_head.encoder if isinstance(self.mlm_head, GraphMlmHead) else self.encoder
        return MaskFiller(encoder, self.mlm_head, self.tokenizer)

    @property
    def has_pooler(self) -> bool:
        """Whether the summary of a row is the model's own, and not of a pooler that was drawn anew."""
        return not any(".pooler." in name for name in self.report.missing_keys)


def load(name: str | Path, revision: str | None = None, engine: str | None = None) -> Model:
    """Load a model: a folder, or a name on the hub, which is downloaded once and then taken from the cache.

    `engine` is what computes it: torch, onnx or openvino; the one that a folder was exported for, else torch, if none
    is named.
    """
    path = fetch(str(name), revision)
    engine, is_exported = choose_engine(path, engine)
    if is_exported:
        return _load_with_runtime(RUNTIMES[engine].open(path), read_exported_folder(path), LoadReport((), (), ()))
    folder = read_folder(path)
    model = _load_in_torch(folder)
    if engine == TORCH:
        return model
    head = graph_head(model.mlm_head, model.predictor)
    return _load_with_runtime(
        RUNTIMES[engine].from_encoder(model.encoder, head, model.has_pooler), folder, model.report
    )


def _load_with_runtime(runtime: Runtime, folder: ModelFolder, report: LoadReport) -> Model:
    encoder, masked, predictor = load_graph_parts(runtime, folder)
    return Model(folder.path, encoder, folder.tokenizer, masked, report, folder.metadata, predictor)


def _load_in_torch(folder: ModelFolder) -> Model:
    encoder, report = load_encoder(folder)
    encoder.eval()
    masked, report = _load_head(folder, "masked", MlmHead, report)
    two_way, report = _load_head(folder, "two-way", create_bilm_head, report)
    if two_way is None:
        two_way, report = _load_head(folder, "two-way-table", create_bilm_head, report)
    predictor = None
    if is_finetuned(folder):
        predictor = build_predictor(folder, encoder, read_task(folder))
        head = load_into(predictor.module.head, folder.tensors, predictor.module.head_names)
        report = _merge_reports(report, head)
    return Model(folder.path, encoder, folder.tokenizer, masked, report, folder.metadata, predictor, two_way)


def _load_head(
    folder: ModelFolder, kind: str, make: Callable[[BertConfig], H], report: LoadReport
) -> tuple[H | None, LoadReport]:
    """Return a head of pretraining if the folder has one of that kind, and what became of all tensors so far."""
    table = folder.family.heads.get(kind)
    if table is None or not all(theirs in folder.tensors for names in table.values() for theirs in names):
        return None, report
    with torch.device("meta"):
        head = make(folder.encoder_config)
    report = _merge_reports(report, load_into(head, folder.tensors, table))
    return head.eval(), report


def _fields(text: str | Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(text, Mapping):
        return dict(text)
    if isinstance(text, str):
        return {"text": text}
    return dict(zip(("sentence1", "sentence2"), text, strict=True))


def _merge_reports(encoder: LoadReport, head: LoadReport) -> LoadReport:
    """Return what became of the tensors of both: what the head took is not unused."""
    unused = tuple(name for name in encoder.unexpected_keys if name not in head.loaded_keys)
    return replace(encoder, loaded_keys=encoder.loaded_keys + head.loaded_keys, unexpected_keys=unused)
