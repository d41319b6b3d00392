"""Load a model: a model folder, a packaged model or a name on the hub in, a Model that predicts and encodes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from bertworks.embeddings.pooling import Pooling, read_pooling
from bertworks.embeddings.sentence_settings import read_prompts
from bertworks.embeddings.vectors import Extraction, embed, resolve_window_rule, stored_window_rule
from bertworks.engines.optional import import_optional
from bertworks.engines.processor import check_processor
from bertworks.engines.runtimes import RUNTIMES, TORCH, choose_engine
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.inference.fill_mask import FillMaskResult, MaskFiller
from bertworks.inference.generation_config import GenerationConfig, GenerationResult, NextWord
from bertworks.inference.graph_models import load_graph_parts
from bertworks.inference.predictor import Predictor
from bertworks.inference.translator import translate_texts, with_search_settings
from bertworks.models.exported_folder import GRAPH, ExportedFolder, read_exported_folder
from bertworks.models.hub import fetch
from bertworks.models.load_report import LoadReport
from bertworks.models.metadata import read_metadata
from bertworks.tasks.contract import GenerativeTask
from bertworks.tasks.inputs import Input, record_of_input
from bertworks.vocabulary.text_coverage import CoverageWarning, TextCoverage
from bertworks.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertworks.encoders.encoder import Encoder
    from bertworks.engines.graph_encoder import Runtime
    from bertworks.inference.generate import TextGenerator
    from bertworks.inference.graph_models import GraphMlmHead
    from bertworks.inference.next_word import BilmWordPredictor
    from bertworks.models.folder import ModelFolder
    from bertworks.objectives.heads import MlmHead
    from bertworks.objectives.large_softmax import Softmax
    from bertworks.tasks.beam_search_settings import BeamSearchSettings

# Names of precisions: auto is the default.
_AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A loaded model.

    encoder    of an exported model a GraphEncoder, which computes the last layer only, and without PyTorch
    mlm_head   the masked-LM head, if the folder has one
    bilm_head  the softmax of a bidirectional language model (ELMo), if the folder has one
    predictor  the task head with its task, if the model is fine-tuned
    report     which tensors were loaded, missing (newly initialized), or unexpected
    metadata   the content of bertworks.json without the hashes
    precision  fp32, bf16 or fp16
    stored_pooling   the pooling of the folder when it was loaded, or the reason why it cannot be computed
    """

    folder: Path
    encoder: Encoder
    tokenizer: Tokenizer
    mlm_head: MlmHead | GraphMlmHead | None
    report: LoadReport
    metadata: dict[str, Any] = field(default_factory=dict)
    precision: str = "fp32"
    predictor: Predictor | None = None
    bilm_head: Softmax | None = None
    stored_pooling: Pooling | FolderError = field(default_factory=Pooling)

    @property
    def pooling(self) -> Pooling:
        """The pooling that the folder states; raises FolderError if it cannot be computed here."""
        if isinstance(self.stored_pooling, FolderError):
            raise self.stored_pooling
        return self.stored_pooling

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts of a sentence-transformers folder by name."""
        return read_prompts(self.folder)

    def text_extraction(
        self, pooling: str | None = None, truncate: bool = False, prompt_name: str | None = None
    ) -> Extraction:
        """Return how text vectors are computed: by the folder's pooling, window rule and prompt, unless others are
        given."""
        used = self.pooling.with_kind(pooling) if pooling else self.pooling
        if prompt_name is not None:
            used = used.with_prompt(prompt_name, self.prompts, self.tokenizer)
        stored_rule = stored_window_rule(self.metadata)
        window_rule = resolve_window_rule(used, self.encoder.config.max_length, truncate, stored_rule)
        return Extraction(pooling=used, window_rule=window_rule)

    def encode(
        self,
        texts: Iterable[str],
        pooling: str | None = None,
        *,
        truncate: bool = False,
        prompt_name: str | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return one vector per text, pooled over its tokens: mean, cls, max, …; by default what the folder states, as
        with the prompt.

        A text longer than the model's maximum is split into overlapping windows, in which each token counts once; with
        `truncate` its first tokens alone count, as in sentence-transformers.
        """
        return embed(self.encoder, self.tokenizer, texts, self.text_extraction(pooling, truncate, prompt_name))

    def predict(self, texts: Iterable[Input]) -> list[Any]:
        """Return the prediction of the fine-tuned task for each text.

        A text is a string, a pair of strings, or a mapping of the task's input fields, such as {"question": …,
        "context": …} or {"prompt": …, "choices": […]}.
        """
        if self.predictor is None:
            raise FolderError(f"{self.folder} is not fine-tuned for a task; fine-tune it with `bertworks finetune`")
        if isinstance(texts, str | Mapping):
            raise InputError("a single text was given instead of several; put it into a list: [text]")
        task = self.predictor.module.task
        records = (record_of_input(task, text, f"text {index}") for index, text in enumerate(texts))
        examples = task.read_unlabelled(records, {})
        return [prediction for _, prediction in self.predictor.predict(examples)]

    def translate(self, texts: Iterable[str], search_settings: BeamSearchSettings | None = None) -> list[str]:
        """Return the translation of each text, by the folder's beam search settings unless others are given."""
        if isinstance(texts, str):
            raise InputError("a single text was given instead of several; put it into a list: [text]")
        return [prediction.text for prediction in translate_texts(self.translator(search_settings), texts)]

    def translator(self, search_settings: BeamSearchSettings | None = None) -> Predictor:
        """Return the predictor of a translation model, with other beam search settings if they are given."""
        if self.predictor is None or not isinstance(self.predictor.module.task, GenerativeTask):
            raise FolderError(
                f"{self.folder} is not a translation model; train one with `bertworks finetune translate`"
            )
        return self.predictor if search_settings is None else with_search_settings(self.predictor, search_settings)

    def fill_mask(self, text: str, top_k: int = 5) -> FillMaskResult:
        """Return the `top_k` candidates for each [MASK] in `text`, and the best ways to fill all of them."""
        if self.mask_filler is None:
            raise FolderError(
                f"{self.folder} has no masked-LM head (it is an encoder only); choose a pretrained model, such as "
                f"one that `bertworks pretrain` writes"
            )
        return self.mask_filler.fill_mask(text, top_k)

    def new_coverage(self) -> TextCoverage:
        """Return an empty TextCoverage for the vocabulary of this model."""
        return TextCoverage(self.tokenizer, self.encoder.reads_characters)

    def coverage_warnings(self, text: str) -> list[CoverageWarning]:
        """Return a warning if the vocabulary hardly reads a text; [MASK] in it is a mask token."""
        coverage = self.new_coverage()
        coverage.add([self.tokenizer.encode(text, parse_masks=True)])
        return coverage.warnings()

    def generate(self, text: str, generation_config: GenerationConfig = GenerationConfig()) -> GenerationResult:
        """Continue a text; only a causal model can."""
        if self.text_generator is None:
            raise FolderError(
                f"{self.folder} cannot generate text: its attention is bidirectional, or it is an exported graph; "
                f"choose a causal model, such as one pretrained with the recipe gpt"
            )
        return self.text_generator.generate(text, generation_config)

    def next_words(self, text: str, top_k: int = 5, backward: bool = False) -> tuple[NextWord, ...]:
        """Return the most probable words after a text, or before it if `backward`; a masked LM predicts a [MASK]."""
        if self.mask_filler is not None:
            return self.mask_filler.next_words(text, top_k, backward)
        if self.bilm_predictor is not None:
            return self.bilm_predictor.next_words(text, top_k, backward)
        if self.text_generator is None:
            raise FolderError(f"{self.folder} has no language-model head (it is an encoder only); pretrain it")
        if backward:
            raise FolderError(
                f"{self.folder} is a causal model and cannot predict previous words; choose a masked language model"
            )
        return self.text_generator.next_words(text, top_k)

    @property
    def text_generator(self) -> TextGenerator | None:
        """A text generator, if the model is causal."""
        if self.mlm_head is not None or self.encoder.attention != "causal":
            return None
        from bertworks.inference.generate import TextGenerator

        return TextGenerator(self.encoder, self.tokenizer)

    @property
    def can_predict_words(self) -> bool:
        """Whether `next_words` works: the model has a language-model head of some kind."""
        return any(part is not None for part in (self.mask_filler, self.bilm_predictor, self.text_generator))

    @property
    def bilm_predictor(self) -> BilmWordPredictor | None:
        """A predictor of next and previous words, if the model is a bidirectional language model."""
        if self.bilm_head is None:
            return None
        from bertworks.inference.next_word import BilmWordPredictor

        return BilmWordPredictor(self.encoder, self.bilm_head, self.tokenizer)

    @property
    def mask_filler(self) -> MaskFiller | None:
        """A mask filler, if the model has a masked-LM head."""
        return None if self.mlm_head is None else MaskFiller(self.encoder, self.mlm_head, self.tokenizer)

    @property
    def has_pooler(self) -> bool:
        """Whether the pooler was loaded, rather than newly initialized."""
        from bertworks.encoders.families import family_of

        prefixes = family_of(self.encoder.config.model_type).optional_prefixes
        return not any(name.startswith(prefixes) for name in self.report.missing_keys)


def load(
    name: str | Path,
    revision: str | None = None,
    engine: str | None = None,
    precision: str | None = None,
    split_special_tokens: bool = True,
) -> LoadedModel:
    """Load a model from a folder, by the name of a packaged model (en-small), or by its name on the hub.

    A model of the hub is downloaded once and then cached.

    `engine` is torch, onnx or openvino; the default is the engine that the folder was exported for, else torch.
    `precision` is auto, fp32, bf16 or fp16; auto, the default, is bf16 where the processor multiplies it in hardware,
    else fp32. Engines other than torch compute in the precision of their graph.
    With `split_special_tokens=False`, the default of transformers, "[SEP]" in a text is a special token, not text.
    """
    if engine not in (None, TORCH) and precision not in (None, _AUTO, "fp32"):
        raise SettingsError(f"precision {precision} is for the engine torch; with {engine}, export the model instead")
    path = fetch(str(name), revision)
    engine, is_exported = choose_engine(path, engine)
    if is_exported:
        return _load_exported(path, engine, split_special_tokens)
    import_optional("torch", "", f"loading {path}, a model that is not exported,")
    from bertworks.inference.torch_models import load_in_torch, load_with_engine, read_model_folder

    folder = read_model_folder(path, split_special_tokens)
    if engine == TORCH:
        return load_in_torch(folder, precision or _AUTO)
    return load_with_engine(folder, engine)


def _load_exported(path: Path, engine: str, split_special_tokens: bool) -> LoadedModel:
    metadata = read_metadata(path)  # which compares hashes first: a damaged graph is never opened
    check_processor(path)
    if GRAPH not in metadata:
        import_optional("torch", "", f"{path} was exported by an older version: loading it")
        from bertworks.inference.torch_models import open_older_export

        older_folder, head_kind = open_older_export(path, metadata, split_special_tokens)
        return model_of_runtime(RUNTIMES[engine].open(path), older_folder, head_kind, LoadReport((), (), ()))
    folder = read_exported_folder(path, metadata, split_special_tokens)
    return model_of_runtime(
        RUNTIMES[engine].open(path), folder, folder.encoder_config.head_kind, LoadReport((), (), ())
    )


def model_of_runtime(
    runtime: Runtime, folder: ExportedFolder | ModelFolder, head_kind: str, report: LoadReport
) -> LoadedModel:
    """Return the model whose graph a runtime runs; `head_kind` is the head in the graph, "" for none."""
    encoder, mlm_head, predictor = load_graph_parts(runtime, folder, head_kind)
    return LoadedModel(
        folder=folder.path,
        encoder=cast("Encoder", encoder),
        tokenizer=folder.tokenizer,
        mlm_head=mlm_head,
        report=report,
        metadata=folder.metadata,
        predictor=predictor,
        stored_pooling=try_pooling(folder),
    )


def try_pooling(folder: ExportedFolder | ModelFolder) -> Pooling | FolderError:
    """Return the pooling of a folder; one that is not supported hinders vectors only, not predictions."""
    try:
        return read_pooling(folder.path).for_tokenizer(folder.tokenizer)
    except FolderError as error:
        return error
