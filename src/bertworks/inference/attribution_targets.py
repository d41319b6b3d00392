"""What there is to explain: a case with its outputs and a target in, how much each output of each row counts out.

For every task it is the score of the target less the mean score of what else could have been said: a score alone says
nothing, since adding the same to all of them changes no probability. That is a sum over outputs, so rows can be
explained one by one.

W windows, C classes, T places of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.datasets.labelled_texts import TextExample
from bertworks.errors import InputError
from bertworks.sampling.windows import WindowSpan
from bertworks.tasks.answer import PassageExample, PassageFeatures
from bertworks.tasks.choose import ChoiceExample
from bertworks.tasks.classify import Classify
from bertworks.tasks.contract import Features
from bertworks.tasks.tag import Tag, TagExample, TagFeatures
from bertworks.tasks.tag_documents import tokenize_alone
from bertworks.vocabulary.tokenizer import TokenizedText, Tokenizer

Floats = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class PredictionContext:
    """A case, the rows that were asked, and what the head said of each."""

    task: Any
    example: Any
    features: Features
    outputs: Sequence[Floats]
    tokenizer: Tokenizer

    @property
    def prediction(self) -> Any:
        return self.task.decode(self.example, self.features, self.outputs)


@dataclass(frozen=True, slots=True)
class SourceText:
    """One of the texts of a case with its pieces. `title` tells people what it is."""

    title: str
    text: str
    tokens: TokenizedText


@dataclass(frozen=True, slots=True)
class AttributionTarget:
    """What is explained.

    factors    for each row, how much each of its outputs counts, in their shape; None where none does
    sources    for each row and each run of pieces in it: which text it is of, and at which piece the text begins
    """

    name: str
    texts: tuple[SourceText, ...]
    factors: tuple[Floats | None, ...]
    sources: tuple[tuple[tuple[int, int], ...], ...]


def resolve_attribution_target(context: PredictionContext, target: str | None) -> AttributionTarget:
    """Return what there is to explain of what was said; without a target it is the prediction itself."""
    return ATTRIBUTION_TARGETS[context.task.name](context, target)


def _class_target(context: PredictionContext, target: str | None) -> AttributionTarget:
    """One of the classes, or one of the labels that hold or not each by itself."""
    task: Classify = context.task
    chances = context.prediction.probabilities
    chosen = target if target is not None else max(task.labels, key=lambda name: chances[name])
    if chosen not in task.labels:
        raise InputError(f"there is no class '{chosen}' to explain; choose one of: {', '.join(task.labels)}")
    number = task.labels.index(chosen)
    # Of several labels at once each is scored alone: there is nothing else that could have been said instead.
    factors = np.eye(len(task.labels))[number] if task.multi_label else _contrast_factors(len(task.labels), number)
    return _target_over_windows(context, f"'{chosen}'", factors)


def _value_target(context: PredictionContext, target: str | None) -> AttributionTarget:
    if target not in (None, "value"):
        raise InputError(f"there is no '{target}' to explain: the model gives texts a number; leave the target out")
    return _target_over_windows(context, "value", np.ones(1))


def _target_over_windows(context: PredictionContext, target: str, factors: Floats) -> AttributionTarget:
    case: TextExample = context.example
    rows = context.features.sequences
    titles = ("text", "pair") if len(case.texts) > 1 else ("text",)
    texts = tuple(_tokenize_text(title, text, context) for title, text in zip(titles, case.texts, strict=True))
    sources = tuple((number, 0) for number in range(len(texts)))
    return AttributionTarget(target, texts, (factors / len(rows),) * len(rows), (sources,) * len(rows))


def _choice_target(context: PredictionContext, target: str | None) -> AttributionTarget:
    """An ending, by its number or as it is written; the others count against it."""
    case: ChoiceExample = context.example
    names = [str(number) for number in range(len(case.endings))]
    chosen = context.prediction.choice
    if target is not None:
        if target not in names and target not in case.endings:
            raise InputError(f"there is no ending '{target}' to explain; give a number from 0 to {names[-1]}")
        chosen = names.index(target) if target in names else case.endings.index(target)
    units = [row.unit for row in context.features.sequences]
    by_ending = _contrast_factors(len(names), chosen)
    texts = [_tokenize_text("prompt", case.prompt, context)]
    texts += [
        _tokenize_text(f"ending {name}", ending, context) for name, ending in zip(names, case.endings, strict=True)
    ]
    factors = tuple(np.array([by_ending[unit] / units.count(unit)]) for unit in units)
    return AttributionTarget(
        f"ending {chosen}", tuple(texts), factors, tuple(((0, 0), (1 + unit, 0)) for unit in units)
    )


def _word_target(context: PredictionContext, target: str | None) -> AttributionTarget:
    """The label of a word: "Paris", "Paris=B-LOC", or with the word's number from 0 on instead, "3=B-LOC".

    Without a target it is the first word of the entity of which the model is surest, or, where it has found none, the
    word that is the nearest to being one.
    """
    task: Tag = context.task
    case: TagExample = context.example
    assert isinstance(context.features, TagFeatures)
    logits = np.concatenate(list(context.outputs))  # (words asked, C)
    asked, label = _resolve_word_and_label(context, context.features.word_indices.tolist(), target, logits)
    factors: list[Floats | None] = []
    at = 0
    for output in context.outputs:
        own = None
        if at <= asked < at + len(output):
            own = np.zeros(output.shape)
            own[asked - at] = _contrast_factors(len(task.labels), label)
        factors.append(own)
        at += len(output)
    text = SourceText("text", case.sentence.text, _tokenize_words(case, context.tokenizer))
    sources = ((0, _first_token(context.features)),)
    named = f"'{case.sentence.words[context.features.word_indices[asked]]}' as {task.labels[label]}"
    return AttributionTarget(named, (text,), tuple(factors), (sources,) * len(factors))


def _first_token(features: Features) -> int:
    """Return where the first word begins among all the pieces that are read: before it stands its document."""
    for row in features.sequences:
        if row.positions is not None and len(row.positions):
            run = row.window.spans[0]
            return int(row.positions[0]) - run.position + run.first
    raise AssertionError("a sentence without words is not asked")


def _resolve_word_and_label(
    context: PredictionContext, word_indices: list[int], target: str | None, logits: Floats
) -> tuple[int, int]:
    """Return which of the words asked is meant, whose numbers in the text are given, and for which label.

    They are not all words where texts are cut: of a document, the end of any of its sentences may be missing.
    """
    if target is None:
        return _default_word_and_label(context, word_indices, logits)
    labels, written = list(context.task.labels), list(context.example.sentence.words)
    words = [written[number] for number in word_indices]
    name, _, tag = target.rpartition("=")
    if not name or tag not in labels:
        name, tag = target, ""
        if "=" in target and target not in written:
            raise InputError(f"there is no label '{target.rpartition('=')[2]}'; choose one of: {', '.join(labels)}")
    if name in words:
        asked = words.index(name)
    elif name.isdecimal() and int(name) in word_indices:
        asked = word_indices.index(int(name))
    elif name in written or (name.isdecimal() and int(name) < len(written)):
        raise InputError(
            f"{context.example.place}: the word '{name}' was cut off by the model's window rule, and not read"
        )
    else:
        raise InputError(
            f"{context.example.place}: there is no word '{name}' to explain; give a word, or its number from 0"
        )
    return asked, labels.index(tag) if tag else int(logits[asked].argmax())


def _default_word_and_label(context: PredictionContext, word_indices: list[int], logits: Floats) -> tuple[int, int]:
    spans, offsets = context.prediction.spans, context.example.sentence.offsets
    if spans:
        surest = max(spans, key=lambda span: span.probability)
        asked = next(at for at, number in enumerate(word_indices) if offsets[number][0] == surest.start)
    else:
        best = np.sort(logits, axis=1)[:, -2:]
        asked = int((best[:, -1] - best[:, 0]).argmin())
    return asked, int(logits[asked].argmax())


def _tokenize_words(example: TagExample, tokenizer: Tokenizer) -> TokenizedText:
    """Return the pieces of a sentence that was cut word by word, with offsets into its text."""
    alone = tokenize_alone(example.context, tokenizer)
    counts = np.diff(alone.first_tokens, append=len(alone.tokens))
    offsets: list[tuple[int, int]] = []
    for word, (start, end), count in zip(
        example.sentence.words, example.sentence.offsets, counts.tolist(), strict=True
    ):
        own = tokenizer.tokenize(word).offsets
        # A word of which nothing remains is read as the unknown piece, which stands for all of it.
        offsets += (own + start).tolist() if len(own) == count else [(start, end)] * count
    begins_word = np.zeros(len(alone.tokens), dtype=np.bool_)
    begins_word[alone.first_tokens] = True
    return TokenizedText(alone.tokens.input_ids, np.array(offsets, dtype=np.int64).reshape(-1, 2), begins_word)


# What can be explained of an answer, and which of the two scores of a place it takes.
_SPAN_SIDES = {"start": (0,), "end": (1,), "answer": (0, 1), "no answer": (0, 1)}


def _answer_target(context: PredictionContext, target: str | None) -> AttributionTarget:
    """Where the best answer starts, where it ends, both ("answer"), or that there is none ("no answer").

    It is explained in the row where the answer stands farthest from the edges; rows with the same part of the passage,
    under parts of a long question, share it.
    """
    case: PassageExample = context.example
    prediction = context.prediction
    chosen = target if target is not None else ("answer" if prediction.text else "no answer")
    if chosen not in _SPAN_SIDES:
        raise InputError(f"there is no '{chosen}' to explain in an answer; choose one of: {', '.join(_SPAN_SIDES)}")
    best = prediction if prediction.text else prediction.runners_up[0]
    if chosen == "no answer":  # as the task does, by the row that is the least sure of it
        places = {min(range(len(context.outputs)), key=lambda number: context.outputs[number][0].sum()): (0, 0)}
    else:
        places = _answer_positions(context, best.start, best.end)
    factors: list[Floats | None] = [None] * len(context.outputs)
    for number, ends in places.items():
        own = np.zeros(context.outputs[number].shape)  # (T, 2)
        for side in _SPAN_SIDES[chosen]:
            own[:, side] = _contrast_factors(len(own), ends[side]) / len(places)
        factors[number] = own
    texts = (_tokenize_text("question", case.question, context), _tokenize_text("passage", case.passage, context))
    named = chosen if chosen == "no answer" else f"{chosen} '{best.text}'"
    return AttributionTarget(named, texts, tuple(factors), (((0, 0), (1, 0)),) * len(factors))


def _answer_positions(context: PredictionContext, begin: int, end: int) -> dict[int, tuple[int, int]]:
    """Return the rows that speak for a span of characters, each with the places where it starts and ends there.

    Several pieces of a word may begin the same span: it is the one that the model likes best.
    """
    assert isinstance(context.features, PassageFeatures)
    edges = context.features.edges
    starts, ends = np.flatnonzero(edges.begins == begin), np.flatnonzero(edges.ends == end)
    runs = [row.window.spans[1] for row in context.features.sequences]
    # Of a word that is longer than a window, some pieces are enough: the model has seen no more.
    holding = [run for run in runs if len(_run_positions(run, starts)) and len(_run_positions(run, ends))]
    nearest = max(holding, key=lambda run: min(starts[0] - run.first, run.first + run.count - 1 - ends[-1])).first
    found = {}
    for number, (run, scores) in enumerate(zip(runs, context.outputs, strict=True)):
        if run.first == nearest:
            first, last = _run_positions(run, starts), _run_positions(run, ends)
            found[number] = (int(first[scores[first, 0].argmax()]), int(last[scores[last, 1].argmax()]))
    return found


def _run_positions(run: WindowSpan, token_indices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the places of those pieces in a row that are in the run."""
    return (
        token_indices[(token_indices >= run.first) & (token_indices < run.first + run.count)] - run.first + run.position
    )


def _contrast_factors(count: int, index: int) -> Floats:
    """Return 1 at that number, and at all others an equal share of -1."""
    if count == 1:
        return np.ones(1)
    factors = np.full(count, -1 / (count - 1))
    factors[index] = 1.0
    return factors


def _tokenize_text(title: str, text: str, context: PredictionContext) -> SourceText:
    return SourceText(title, text, context.tokenizer.tokenize(text))


ATTRIBUTION_TARGETS: dict[str, Callable[[PredictionContext, str | None], AttributionTarget]] = {
    "classify": _class_target,
    "regress": _value_target,
    "choose": _choice_target,
    "tag": _word_target,
    "answer": _answer_target,
}
