"""Translate: texts beside their translations in, translations out; the task of the Transformer.

A text that is longer than the model reads is translated sentence by sentence. While it learns a model writes greedily;
with the finished one goes a beam search. B rows, P places that are asked, V pieces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bertworks.datasets.files import Record
from bertworks.datasets.labelled_texts import TextExample
from bertworks.datasets.translations import read_pairs, unlabelled_texts
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.stack import BertConfig, Encoder
from bertworks.encoders.transformer import TransformerConfig
from bertworks.errors import InputError, SettingsError
from bertworks.metrics.translation import TranslationTally, bleu_tokenizer_of
from bertworks.objectives.cross_entropy import cross_entropy_sum, evaluate_cross_entropy, token_losses
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import Window, WindowRule
from bertworks.tasks.beam_search import BeamSearchDecoder, BeamSearchSettings
from bertworks.tasks.contract import Features, InputSequence, Mistake, Task, TaskScores, worst_mistakes
from bertworks.text.document import Counts
from bertworks.text.sentences import split_sentences
from bertworks.vocabulary.surface_forms import decode_display_text, is_wide
from bertworks.vocabulary.tokenizer import Tokenizer

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_GREEDY = BeamSearchSettings(num_beams=1)
# A model that is below this on its own training pairs has not learned them.
_LOW_BLEU = 0.2
# What stands in an output before the pieces.
_NUM_HEADER_VALUES = 4


@dataclass(frozen=True, slots=True)
class TranslationPrediction:
    """A translation, its log probability and pieces, and whether it came to its end within the pieces allowed.

    `reference` is the loss of the right translation, summed, and over how many pieces; None where it is not known.
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
            "is_whole": self.is_finished,
        }


@dataclass(frozen=True, slots=True)
class TranslationFeatures(Features):
    """The rows of a text, and the vocabulary in which its translation is written."""

    tokenizer: Tokenizer | None = None


class TranslationHead(nn.Module):
    """What is added to the scores of the pieces; the rest is compared with the table of pieces itself.

    It is told and not learned: the paper has none, and models that were trained elsewhere may bring one.
    """

    bias: torch.Tensor  # (1, V)

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.register_buffer("bias", torch.zeros(1, vocab_size))


@dataclass(frozen=True, slots=True)
class Translate:
    """In other words. Models are chosen by BLEU.

    cut         how sacrebleu cuts texts for it
    searching   how translations are looked for; `later` how they will be when all is learned
    smoothing   how much of what is right all pieces share while a model learns
    start       the piece that a translation begins with; None: the first special one
    """

    name: ClassVar[str] = "translate"
    head_kind: ClassVar[str] = "translations"
    default_window_rule: ClassVar[WindowRule] = WindowRule()
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
        cut = settings.get("cut") or bleu_tokenizer_of(case.label for case in examples if case.label is not None)
        TranslationTally(cut)  # a part that is missing is missed now, not after an hour
        smoothing = float(settings.get("smoothing", cls().smoothing))
        if not 0 <= smoothing < 1:
            raise SettingsError(f"smoothing is {smoothing}; give a number from 0 to below 1, such as 0.1")
        return cls(cut, _GREEDY, settings.get("searching", BeamSearchSettings()), smoothing)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Translate:
        searching = BeamSearchSettings(**metadata.get("searching", {}))
        return cls(
            metadata.get("cut", "13a"),
            searching,
            searching,
            decoder_start_token_id=config.get("decoder_start_token_id"),
        )

    def metadata(self) -> dict[str, Any]:
        return {"cut": self.bleu_tokenizer, "searching": asdict(self.search_settings)}

    def config(self) -> dict[str, Any]:
        return {}

    def head(self, config: BertConfig) -> nn.Module:
        if not isinstance(config, TransformerConfig):
            raise SettingsError(
                f"a model of the family '{config.model_type}' has no decoder and cannot translate; begin a new one with "
                f"--recipe transformer and --vocab, or choose one that was begun so"
            )
        return TranslationHead(config.vocab_size)

    @property
    def main_metric(self) -> str:
        return "bleu"

    def featurize(self, example: TextExample, tokenizer: Tokenizer, window_rule: WindowRule) -> TranslationFeatures:
        """Return the rows of a text. A pair too long to be read together is not learned from, and not cut either."""
        sources, num_cut = _sources(example.texts[0], tokenizer, window_rule)
        said = None if example.label is None else tokenizer.tokenize(example.label).input_ids
        teaches = said is not None and len(sources) == 1 and not num_cut and len(said) < window_rule.max_length
        start = tokenizer.specials.cls if self.decoder_start_token_id is None else self.decoder_start_token_id
        read, wanted = [start], np.empty(0, dtype=np.int64)
        if said is not None and teaches:
            read, wanted = [start, *said.tolist()], np.append(said, tokenizer.specials.sep).astype(np.int64)
        target = _window(np.array(read, dtype=np.int64))
        places = np.arange(len(wanted))
        rows = tuple(InputSequence(source, positions=places, targets=wanted, target=target) for source in sources)
        return TranslationFeatures(
            rows, label=example.label, num_truncated=num_cut, is_trainable=teaches, tokenizer=tokenizer
        )

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        return {}

    def sequence_loss(
        self, encoder: Encoder, head: nn.Module, batch: Batch, seeds: DropoutSeeds | None
    ) -> torch.Tensor:
        """Return the summed loss, smoothed where something is learned; scores are never there all at once."""
        vectors, table, bias, targets = _loss_inputs(encoder, head, batch, seeds)
        if torch.is_grad_enabled():
            return cross_entropy_sum(vectors, table, bias, targets, 1.0, self.smoothing)
        return evaluate_cross_entropy(vectors, table, bias, targets)[0]

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return outputs

    def num_targets(self, batch: Batch) -> int:
        assert batch.targets is not None
        return len(batch.targets)

    def generate(self, encoder: Encoder, head: nn.Module, batch: Batch, tokenizer: Tokenizer) -> list[Floats]:
        """Return for each row the summed loss of the right translation and over how many pieces, the log probability
        of the one that was found, whether it came to its end, and then its pieces."""
        assert batch.source is not None
        end = tokenizer.specials.sep
        never = tuple(number for number in tokenizer.specials.ids if number != end)
        bias = head.bias[0]  # type: ignore[index]
        found = BeamSearchDecoder(encoder, bias, int(batch.input_ids[0, 0]), end, never).generate(
            batch.source, self.search_settings
        )
        known = _references(encoder, head, batch).tolist()
        return [
            np.array([*told, one.log_probability, one.is_finished, *one.token_ids], dtype=np.float32)
            for told, one in zip(known, found, strict=True)
        ]

    def decode(self, example: TextExample, features: Features, outputs: Sequence[Floats]) -> TranslationPrediction:
        assert isinstance(features, TranslationFeatures)
        assert features.tokenizer is not None
        pieces = [output[_NUM_HEADER_VALUES:].astype(np.int64).tolist() for output in outputs]
        text = ""
        for own in pieces:
            more = decode_display_text(features.tokenizer, own)
            text += more if not text or is_wide(text) else f" {more}"
        count = int(sum(output[1] for output in outputs))
        return TranslationPrediction(
            example.id,
            text,
            float(sum(output[2] for output in outputs)),
            sum(len(own) + 1 for own in pieces),
            all(bool(output[3]) for output in outputs),
            (float(sum(output[0] for output in outputs)), count) if count else None,
        )

    def score(self, pairs: Iterable[tuple[TextExample, TranslationPrediction]]) -> TaskScores:
        tally = TranslationTally(self.bleu_tokenizer)
        mistakes: list[Mistake] = []
        lost, count = 0.0, 0
        for case, said in pairs:
            if case.label is None:
                raise InputError(
                    f"{case.location}: there is no translation to compare with; name its column with --label"
                )
            tally.add(said.text, case.label)
            if said.reference_loss is not None:
                lost, count = lost + said.reference_loss[0], count + said.reference_loss[1]
            if said.text != case.label:
                sure = math.exp(said.log_probability / max(said.num_tokens, 1))
                mistakes = worst_mistakes([*mistakes, Mistake(sure, case.texts, case.label, said.text, case.location)])
        loss = {"loss": lost / count} if count else {}
        return TaskScores({**tally.scores(), **loss}, self.main_metric, {"mistakes": mistakes}, _LOW_BLEU)

    def calibrate(self, examples: Sequence[TextExample], predictions: Sequence[TranslationPrediction]) -> Task:
        """Return the task as it will be used: with a search."""
        return replace(self, search_settings=self.final_search_settings)


def _loss_inputs(
    encoder: Encoder, head: nn.Module, batch: Batch, seeds: DropoutSeeds | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return vectors (P, D), the table of pieces (V, D) they are compared with, the bias (V,) and the targets (P,)."""
    assert batch.positions is not None
    assert batch.targets is not None
    bias: torch.Tensor = head.bias[0]  # type: ignore[index]
    return encoder(batch, seeds=seeds).gather(batch.positions), encoder.token_embeddings.weight, bias, batch.targets


def _references(encoder: Encoder, head: nn.Module, batch: Batch) -> torch.Tensor:
    """Return (B, 2): the summed loss of what is right in each row, and over how many pieces."""
    found = torch.zeros(len(batch.input_ids), 2, device=batch.input_ids.device)
    if batch.positions is None or batch.targets is None or not len(batch.targets):
        return found
    rows = batch.positions // batch.input_ids.shape[1]
    losses = token_losses(*_loss_inputs(encoder, head, batch, None)).to(found.dtype)
    return found.index_add(0, rows, torch.stack([losses, torch.ones_like(losses)], 1))


def _sources(text: str, tokenizer: Tokenizer, window_rule: WindowRule) -> tuple[list[Window], int]:
    """Return the rows in which a text is read, and how many pieces were cut off because the rule says so."""
    room = window_rule.max_length - tokenizer.num_special_tokens(1)
    ids = tokenizer.tokenize(text).input_ids
    if len(ids) <= room or window_rule.truncate:
        rows = [_add_special_tokens(tokenizer, ids[:room])] if len(ids) else []
        return rows, max(0, len(ids) - room)
    return [_add_special_tokens(tokenizer, own) for own in _sentence_chunks(text, tokenizer, room)], 0


def _sentence_chunks(text: str, tokenizer: Tokenizer, room: int) -> Iterator[Ints]:
    """Yield the pieces of as many sentences at a time as there is room for; what is longer, in equal parts."""
    gathered = np.empty(0, dtype=np.int64)
    for sentence in split_sentences(text):
        own = tokenizer.tokenize(sentence).input_ids
        if len(gathered) and len(gathered) + len(own) > room:
            yield gathered
            gathered = own[:0]
        if len(own) > room:
            yield from np.array_split(own, -(-len(own) // room))
        else:
            gathered = np.concatenate([gathered, own])
    if len(gathered):
        yield gathered


def _add_special_tokens(tokenizer: Tokenizer, input_ids: Ints) -> Window:
    return _window(tokenizer.build_inputs(input_ids)[0])


def _window(input_ids: Ints) -> Window:
    return Window(input_ids, np.zeros_like(input_ids), ())
