"""Explain a prediction by integrated gradients: a model at work and a case in, the weight of every piece out.

On the straight way from rows in which every piece is masked to the rows as they are, each piece is credited with how
fast the output changes along its own vector. The credits sum to the difference of the outputs (completeness), which is
checked. The way starts at [MASK] and not at [PAD]: masked rows are what a BERT has learned to read as "anything may
stand here", while nothing ever read a [PAD] in training, so that what it would say of such rows means nothing.
Special pieces are the same at both ends and have no weight.

T places of a row, S steps, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertworks.datasets.labelled_texts import TextExample
from bertworks.errors import InputError
from bertworks.inference.attribution_targets import AttributionTarget, PredictionContext, resolve_attribution_target
from bertworks.inference.explanation import Explanation, TextAttribution, is_converged
from bertworks.inference.predictor import Predictor
from bertworks.tasks.answer import PassageExample
from bertworks.tasks.batching import batch_of_input_sequences
from bertworks.tasks.choose import ChoiceExample
from bertworks.tasks.contract import InputSequence
from bertworks.tasks.module import TaskModule
from bertworks.tasks.tag import TagExample

Floats = npt.NDArray[np.float64]

# How many steps the way has. Where they miss the difference there are three times as many, in the middle of which the
# old ones lie, so that none is lost; but never more than the second number.
_STEPS = 32
_MAX_STEPS = 32 * 27
# How many pieces are computed together, there and back.
_BUDGET = 4_096


def explain(predictor: Predictor, example: Any, target: str | None = None) -> Explanation:
    """Return which pieces drove the prediction of a case, or what speaks for and against another `target`.

    A target is a class, an ending (its number or text), a word ("Paris", "Paris=B-LOC"), or of an answer "start",
    "end", "answer" or "no answer".
    """
    module, tokenizer = predictor.module, predictor.tokenizer
    question = module.task.featurize(example, tokenizer, predictor.window_rule)
    (outputs,) = predictor.outputs([question])
    aim = resolve_attribution_target(PredictionContext(module.task, example, question, outputs, tokenizer), target)
    way = _IntegrationPath(module, tokenizer.specials.mask, tokenizer.specials.pad)
    weights = [np.zeros(len(text.tokens)) for text in aim.texts]
    output, baseline_output, elsewhere, num_steps = 0.0, 0.0, 0.0, _STEPS
    for row, factors, sources in zip(question.sequences, aim.factors, aim.sources, strict=True):
        if factors is None:
            continue
        found = way.integrate(row, factors)
        output += found.output
        baseline_output += found.baseline_output
        num_steps = max(num_steps, found.num_steps)
        elsewhere += _add_weights(found.weights, row, sources, weights)
    texts = _text_attributions(aim, weights, tokenizer.tokens)
    return Explanation(aim.name, texts, output, baseline_output, num_steps, elsewhere, question.num_truncated)


def _add_weights(
    sequence_weights: Floats, sequence: InputSequence, sources: Sequence[tuple[int, int]], weights: Sequence[Floats]
) -> float:
    """Add the weights of a row's places to those of the texts' pieces; return what belongs to none of them."""
    outside = 0.0
    for run, (text, begin) in zip(sequence.window.spans, sources, strict=True):
        numbers = np.arange(run.first, run.first + run.count) - begin
        values = sequence_weights[run.position : run.position + run.count]
        inside = (numbers >= 0) & (numbers < len(weights[text]))
        weights[text][numbers[inside]] += values[inside]
        outside += float(values[~inside].sum())
    return outside


def _text_attributions(
    attribution_target: AttributionTarget, weights: Sequence[Floats], tokens: Sequence[str]
) -> tuple[TextAttribution, ...]:
    return tuple(
        TextAttribution(
            read.title,
            read.text,
            tuple(tokens[number] for number in read.tokens.input_ids),
            tuple((int(start), int(end)) for start, end in read.tokens.offsets),
            tuple(read.tokens.begins_word.tolist()),
            own,
        )
        for read, own in zip(attribution_target.texts, weights, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _PathIntegral:
    """The weights of a row's places (T,), its output at both ends, and how many steps it took."""

    weights: Floats
    output: float
    baseline_output: float
    num_steps: int


@dataclass(frozen=True, slots=True)
class _IntegrationPath:
    """From a row in which every piece is masked to the row itself."""

    module: TaskModule
    mask_id: int
    pad_id: int

    def integrate(self, sequence: InputSequence, factors: npt.NDArray[Any]) -> _PathIntegral:
        """Return how much each place adds to the sum of the row's outputs, each times its factor."""
        masked, given = self._endpoints(sequence)
        wanted = torch.from_numpy(factors).to(given)
        with torch.no_grad():
            ends = self._outputs(sequence, torch.stack([masked, given]), wanted)
        baseline_output, output = ends.tolist()
        difference = (given - masked).double().cpu().numpy()  # (T, D)
        num_steps, credit = _STEPS, self._gradients(sequence, (masked, given), wanted, _midpoints(_STEPS))
        while True:
            weights = (credit / num_steps * difference).sum(1)
            gap = float(weights.sum()) - (output - baseline_output)
            if is_converged(gap, float(np.abs(weights).sum())) or num_steps >= _MAX_STEPS:
                return _PathIntegral(weights, output, baseline_output, num_steps)
            num_steps *= 3
            credit += self._gradients(sequence, (masked, given), wanted, np.delete(_midpoints(num_steps), np.s_[1::3]))

    def _endpoints(self, sequence: InputSequence) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the embedded places of the row with its pieces masked, and as they are: each (T, D)."""
        ids = sequence.window.input_ids.copy()
        for run in sequence.window.spans:
            ids[run.position : run.position + run.count] = self.mask_id
        masked = replace(sequence, window=replace(sequence.window, input_ids=ids, unknown={}))
        found = []
        for one in (masked, sequence):
            batch = batch_of_input_sequences([one], self.pad_id).to(self._device)
            with torch.no_grad():
                found.append(self.module.encoder.embed(batch, self.module.encoder.create_layout(batch)))
        return found[0], found[1]

    def _gradients(
        self,
        sequence: InputSequence,
        endpoints: tuple[torch.Tensor, torch.Tensor],
        factors: torch.Tensor,
        alphas: npt.NDArray[np.float64],
    ) -> Floats:
        """Return the gradients of the output by the embedded places, summed over points of the way: (T, D)."""
        masked, given = endpoints
        total = np.zeros(given.shape)
        count = max(1, _BUDGET // len(given))
        for start in range(0, len(alphas), count):
            part = torch.from_numpy(alphas[start : start + count]).to(given)[:, None, None]
            points = (masked + part * (given - masked)).requires_grad_()  # (S, T, D)
            with torch.enable_grad():
                outputs = self._outputs(sequence, points, factors)
            (slopes,) = torch.autograd.grad(outputs.sum(), points)
            total += slopes.double().sum(0).cpu().numpy()
        return total

    def _outputs(self, sequence: InputSequence, points: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """Return (S,): the outputs of rows that are given as embedded places, each times its factor, summed."""
        batch = batch_of_input_sequences([sequence] * len(points), self.pad_id).to(self._device)
        encoded = self.module.encoder.forward_layers(points.flatten(0, 1), self.module.encoder.create_layout(batch))
        outputs = self.module.head(encoded, batch).reshape(len(points), *factors.shape)
        return (outputs * factors).flatten(1).sum(1)

    @property
    def _device(self) -> torch.device:
        return self.module.encoder.device


def _midpoints(count: int) -> npt.NDArray[np.float64]:
    """Return the middles of so many equal steps from 0 to 1."""
    return (np.arange(count) + 0.5) / count


def example_from_texts(task_name: str, texts: Sequence[str]) -> Any:
    """Return the case of texts that a person wrote for a task; what it cannot read is refused."""
    if task_name not in EXPLAINABLE_TASKS:
        raise InputError(
            f"there is nothing to explain in '{task_name}'; choose a model for one of: {', '.join(EXPLAINABLE_TASKS)}"
        )
    wanted, least, most, make = EXPLAINABLE_TASKS[task_name]
    if not least <= len(texts) <= most or not all(text.strip() for text in texts):
        raise InputError(
            f"a model for '{task_name}' reads {wanted}; {len(texts)} texts were given, or one of them is empty"
        )
    return make(tuple(texts))


# For each task: what it reads, the fewest and the most texts, and how they become a case.
EXPLAINABLE_TASKS: dict[str, tuple[str, int, int, Callable[[tuple[str, ...]], Any]]] = {
    "classify": ("a text or a pair", 1, 2, lambda texts: TextExample("1", "the text", texts)),
    "regress": ("a text or a pair", 1, 2, lambda texts: TextExample("1", "the text", texts)),
    "choose": ("a prompt and its endings", 3, 99, lambda texts: ChoiceExample("1", "the text", texts[0], texts[1:])),
    "tag": ("a text", 1, 1, lambda texts: TagExample.from_text(texts[0])),
    "answer": ("a question and a passage", 2, 2, lambda texts: PassageExample("1", "the text", texts[0], texts[1])),
}
