"""Translation: texts with their translations in, translations out; the task of the Transformer.

A text longer than the model's sequences is translated sentence by sentence. During training dev is decoded greedily;
the final model uses beam search. B sequences, P target positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bertworks.datasets.files import Record
from bertworks.datasets.labelled_texts import TextExample
from bertworks.datasets.translations import read_pairs, unlabelled_texts
from bertworks.errors import InputError, SettingsError
from bertworks.metrics.translation import TranslationTally, bleu_tokenizer_of
from bertworks.sampling.windows import Window, WindowRule
from bertworks.settings import from_table
from bertworks.tasks.beam_search_settings import BeamSearchSettings
from bertworks.tasks.contract import (
    Features,
    InputFields,
    InputSequence,
    Mistake,
    Task,
    TaskScores,
    worst_mistakes,
)
from bertworks.tasks.inputs import TEXT
from bertworks.text.document import Counts
from bertworks.text.sentences import split_sentences
from bertworks.vocabulary.surface_forms import decode_display_text, is_wide
from bertworks.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch
    from torch import nn

    from bertworks.encoders.config import EncoderConfig
    from bertworks.encoders.encoder import Encoder
    from bertworks.encoders.layers import DropoutSeeds
    from bertworks.sampling.batch import Batch

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_GREEDY = BeamSearchSettings(num_beams=1)
# A model whose BLEU on its own training pairs is lower has not learned them.
_UNDERFIT_BLEU = 0.2
# How many values of an output precede the token ids.
_NUM_HEADER_VALUES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationPrediction:
    """A translation, its log probability and length in tokens, and whether it ended within the token limit.

    `reference_loss` is the summed loss of the gold translation and its number of tokens; None if unknown.
    """

    id: str
    text: str
    log_probability: float
    num_tokens: int
    is_finished: bool
    reference_loss: tuple[float, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "translation": self.text,
            "log_probability": self.log_probability,
            "is_finished": self.is_finished,
        }

    def __repr__(self) -> str:
        return f"TranslationPrediction({self.text!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationFeatures(Features):
    """Features of a text, and the tokenizer that decodes its translation."""

    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Translate:
    """Translation. Models are selected by BLEU.

    bleu_tokenizer           sacrebleu's tokenizer for it
    search_settings          the current beam search; `final_search_settings` that of the final model
    smoothing                label smoothing during training
    decoder_start_token_id   the first token of the decoder's input; None: the tokenizer's [CLS]
    """

    name: ClassVar[str] = "translate"
    head_kind: ClassVar[str] = "translation"
    default_window_rule: ClassVar[WindowRule] = WindowRule()
    input_fields: ClassVar[tuple[InputFields, ...]] = (TEXT,)
    bleu_tokenizer: str = "13a"
    search_settings: BeamSearchSettings = field(default_factory=BeamSearchSettings)
    final_search_settings: BeamSearchSettings = field(default_factory=BeamSearchSettings)
    smoothing: float = 0.1
    decoder_start_token_id: int | None = None

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[TextExample]:
        return read_pairs(path, columns, counts)

    @classmethod
    def read_unlabelled(cls, records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[TextExample]:
        return unlabelled_texts(records, columns)

    @classmethod
    def from_examples(cls, examples: Sequence[TextExample], settings: Mapping[str, Any]) -> Translate:
        bleu_tokenizer = settings.get("bleu_tokenizer") or bleu_tokenizer_of(
            example.label for example in examples if example.label is not None
        )
        TranslationTally(bleu_tokenizer)  # fails now, not after an hour, if a package is missing
        smoothing = float(settings.get("smoothing", cls().smoothing))
        if not 0 <= smoothing < 1:
            raise SettingsError(f"smoothing is {smoothing}; give a number from 0 to below 1, such as 0.1")
        return cls(
            bleu_tokenizer=bleu_tokenizer,
            search_settings=_GREEDY,
            final_search_settings=settings.get("search_settings", BeamSearchSettings()),
            smoothing=smoothing,
        )

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Translate:
        search_settings = from_table(
            BeamSearchSettings, metadata.get("search_settings", {}), "bertworks.json, search_settings"
        )
        return cls(
            bleu_tokenizer=metadata.get("bleu_tokenizer", "13a"),
            search_settings=search_settings,
            final_search_settings=search_settings,
            decoder_start_token_id=config.get("decoder_start_token_id"),
        )

    @classmethod
    def matches_config(cls, config: Mapping[str, Any]) -> bool:
        return True

    def metadata(self) -> dict[str, Any]:
        return {"bleu_tokenizer": self.bleu_tokenizer, "search_settings": asdict(self.search_settings)}

    def config(self) -> dict[str, Any]:
        return {}

    def head(self, config: EncoderConfig) -> nn.Module:
        from bertworks.encoders.transformer import TransformerConfig
        from bertworks.tasks.translation_head import TranslationHead

        if not isinstance(config, TransformerConfig):
            raise SettingsError(
                f"a model of the family '{config.model_type}' has no decoder and cannot translate; train a new one "
                f"with --recipe transformer and --vocab, or choose a Transformer"
            )
        return TranslationHead(config.vocab_size)

    @property
    def main_metric(self) -> str:
        return "bleu"

    def featurize(self, example: TextExample, tokenizer: Tokenizer, window_rule: WindowRule) -> TranslationFeatures:
        """Return the sequences of a text. A pair too long for one sequence is not truncated, and not trained on."""
        sources, num_truncated = _source_windows(example.texts[0], tokenizer, window_rule)
        target_ids = None if example.label is None else tokenizer.tokenize(example.label).input_ids
        is_trainable = (
            target_ids is not None
            and len(sources) == 1
            and not num_truncated
            and len(target_ids) < window_rule.max_length
        )
        start = tokenizer.specials.cls if self.decoder_start_token_id is None else self.decoder_start_token_id
        decoder_ids, targets = [start], np.empty(0, dtype=np.int64)
        if target_ids is not None and is_trainable:
            decoder_ids = [start, *target_ids.tolist()]
            targets = np.append(target_ids, tokenizer.specials.sep).astype(np.int64)
        target = _window(np.array(decoder_ids, dtype=np.int64))
        positions = np.arange(len(targets))
        return TranslationFeatures(
            sequences=tuple(
                InputSequence.from_window(source, positions=positions, targets=targets, target=target)
                for source in sources
            ),
            label=example.label,
            num_truncated=num_truncated,
            is_trainable=is_trainable,
            tokenizer=tokenizer,
        )

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        return {}

    def sequence_loss(
        self, encoder: Encoder, head: nn.Module, batch: Batch, seeds: DropoutSeeds | None
    ) -> torch.Tensor:
        """Return the summed loss, label-smoothed in training; the logits (P, V) are never materialized at once."""
        from bertworks.tasks.translation_head import translation_loss

        return translation_loss(encoder, head, batch, seeds, self.smoothing)

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return outputs

    def num_targets(self, batch: Batch) -> int:
        assert batch.targets is not None
        return len(batch.targets)

    def generate(self, encoder: Encoder, head: nn.Module, batch: Batch, tokenizer: Tokenizer) -> list[Floats]:
        """Return for each sequence the summed loss of the gold translation, its number of tokens, the log probability
        of the generated one, whether it is finished, and its token ids."""
        from bertworks.tasks.beam_search import BeamSearchDecoder
        from bertworks.tasks.translation_head import reference_losses

        assert batch.source is not None
        end = tokenizer.specials.sep
        suppressed = tuple(token_id for token_id in tokenizer.specials.ids if token_id != end)
        bias = head.bias[0]  # type: ignore[index]
        decoder = BeamSearchDecoder(
            encoder=encoder, bias=bias, start=int(batch.input_ids[0, 0]), end=end, suppress_tokens=suppressed
        )
        hypotheses = decoder.generate(batch.source, self.search_settings)
        references = reference_losses(encoder, head, batch).tolist()
        return [
            np.array(
                [*reference, hypothesis.log_probability, hypothesis.is_finished, *hypothesis.token_ids],
                dtype=np.float32,
            )
            for reference, hypothesis in zip(references, hypotheses, strict=True)
        ]

    def decode(self, example: TextExample, features: Features, outputs: Sequence[Floats]) -> TranslationPrediction:
        assert isinstance(features, TranslationFeatures)
        token_ids = [output[_NUM_HEADER_VALUES:].astype(np.int64).tolist() for output in outputs]
        text = ""
        for ids in token_ids:
            part = decode_display_text(features.tokenizer, ids)
            text += part if not text or is_wide(text) else f" {part}"
        num_reference_tokens = int(sum(output[1] for output in outputs))
        reference_loss = float(sum(output[0] for output in outputs))
        return TranslationPrediction(
            id=example.id,
            text=text,
            log_probability=float(sum(output[2] for output in outputs)),
            num_tokens=sum(len(ids) + 1 for ids in token_ids),
            is_finished=all(bool(output[3]) for output in outputs),
            reference_loss=(reference_loss, num_reference_tokens) if num_reference_tokens else None,
        )

    def score(self, pairs: Iterable[tuple[TextExample, TranslationPrediction]]) -> TaskScores:
        tally = TranslationTally(self.bleu_tokenizer)
        mistakes: list[Mistake] = []
        loss_sum, num_tokens = 0.0, 0
        for example, prediction in pairs:
            if example.label is None:
                raise InputError(
                    f"{example.location}: there is no translation to compare with; name its column with --label"
                )
            tally.add(prediction.text, example.label)
            if prediction.reference_loss is not None:
                loss_sum += prediction.reference_loss[0]
                num_tokens += prediction.reference_loss[1]
            if prediction.text != example.label:
                mistake = Mistake(
                    confidence=math.exp(prediction.log_probability / max(prediction.num_tokens, 1)),
                    texts=example.texts,
                    expected=example.label,
                    predicted=prediction.text,
                    location=example.location,
                )
                mistakes = worst_mistakes([*mistakes, mistake])
        loss = {"loss": loss_sum / num_tokens} if num_tokens else {}
        return TaskScores(
            metrics={**tally.scores(), **loss},
            main_metric=self.main_metric,
            details={"mistakes": mistakes},
            underfit_threshold=_UNDERFIT_BLEU,
        )

    def calibrate(self, examples: Sequence[TextExample], predictions: Sequence[TranslationPrediction]) -> Task:
        """Return the task with the final model's beam search."""
        return replace(self, search_settings=self.final_search_settings)

    def with_search_settings(self, settings: BeamSearchSettings) -> Translate:
        return replace(self, search_settings=settings)

    def submission_value(self, prediction: TranslationPrediction) -> str:
        return prediction.text


def _source_windows(text: str, tokenizer: Tokenizer, window_rule: WindowRule) -> tuple[list[Window], int]:
    """Return the windows of a text, and how many tokens the window rule truncated."""
    max_tokens = window_rule.max_length - tokenizer.num_special_tokens(1)
    input_ids = tokenizer.tokenize(text).input_ids
    if len(input_ids) <= max_tokens or window_rule.truncate:
        windows = [_add_special_tokens(tokenizer, input_ids[:max_tokens])] if len(input_ids) else []
        return windows, max(0, len(input_ids) - max_tokens)
    return [_add_special_tokens(tokenizer, chunk) for chunk in _sentence_chunks(text, tokenizer, max_tokens)], 0


def _sentence_chunks(text: str, tokenizer: Tokenizer, max_tokens: int) -> Iterator[Ints]:
    """Yield the tokens of as many sentences at a time as fit; a longer sentence in equal parts."""
    chunk = np.empty(0, dtype=np.int64)
    for sentence in split_sentences(text):
        input_ids = tokenizer.tokenize(sentence).input_ids
        if len(chunk) and len(chunk) + len(input_ids) > max_tokens:
            yield chunk
            chunk = input_ids[:0]
        if len(input_ids) > max_tokens:
            yield from np.array_split(input_ids, -(-len(input_ids) // max_tokens))
        else:
            chunk = np.concatenate([chunk, input_ids])
    if len(chunk):
        yield chunk


def _add_special_tokens(tokenizer: Tokenizer, input_ids: Ints) -> Window:
    return _window(tokenizer.build_inputs(input_ids)[0])


def _window(input_ids: Ints) -> Window:
    return Window(input_ids, np.zeros_like(input_ids), ())
