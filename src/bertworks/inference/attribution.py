"""Explain a prediction by integrated gradients: a predictor and an example in, the attribution of every token out.

Gradients are integrated along the straight path from the input with every token masked to the input itself. The
attributions sum to the difference of the two outputs (completeness), which is checked. The baseline is [MASK] and not
[PAD]: masked input is in BERT's training distribution and means "any token", while no model was trained on [PAD].
Special tokens are the same at both ends and have no attribution.

T positions of a sequence, S steps, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertworks.errors import InputError
from bertworks.inference.explanation import Explanation, TextAttribution, is_converged
from bertworks.inference.predictor import Predictor
from bertworks.tasks.batching import batch_of_input_sequences
from bertworks.tasks.contract import AttributionTarget, ExplainableTask, InputSequence, PredictionContext, Task
from bertworks.tasks.inputs import example_from_input
from bertworks.tasks.module import TaskModule

Floats = npt.NDArray[np.float64]

# Steps of the path. If they do not converge there are three times as many, whose midpoints include the old ones, up to
# the second number.
_STEPS = 32
_MAX_STEPS = 32 * 27
# Tokens of a forward and backward pass.
_TOKEN_BUDGET = 4_096


def explain(predictor: Predictor, example: Any, target: str | None = None) -> Explanation:
    """Return which tokens drove the prediction of an example, or what speaks for and against another `target`.

    What a target may be is up to the task: a class, an ending (index or text), a word ("Paris", "Paris=B-LOC"), or
    "start", "end", "answer" or "no answer".
    """
    module, tokenizer = predictor.module, predictor.tokenizer
    task = module.task
    if not isinstance(task, ExplainableTask):
        raise InputError(f"predictions of '{task.name}' cannot be explained; choose a model of another task")
    features = module.task.featurize(example, tokenizer, predictor.window_rule)
    (outputs,) = predictor.outputs([features])
    resolved = task.attribution_target(PredictionContext(example, features, outputs, tokenizer), target)
    path = _IntegrationPath(module, tokenizer.specials.mask, tokenizer.specials.pad)
    weights = [np.zeros(len(text.tokens)) for text in resolved.texts]
    output, baseline_output, context_weight, num_steps = 0.0, 0.0, 0.0, _STEPS
    for sequence, coefficients, sources in zip(
        features.sequences, resolved.coefficients, resolved.sources, strict=True
    ):
        if coefficients is None:
            continue
        integral = path.integrate(sequence, coefficients)
        output += integral.output
        baseline_output += integral.baseline_output
        num_steps = max(num_steps, integral.num_steps)
        context_weight += _add_weights(integral.weights, sequence, sources, weights)
    return Explanation(
        target=resolved.name,
        texts=_text_attributions(resolved, weights, tokenizer.tokens),
        output=output,
        baseline_output=baseline_output,
        num_steps=num_steps,
        context_weight=context_weight,
        num_truncated=features.num_truncated,
    )


def _add_weights(
    sequence_weights: Floats, sequence: InputSequence, sources: Sequence[tuple[int, int]], weights: Sequence[Floats]
) -> float:
    """Add the weights of a sequence's positions to those of the texts' tokens; return the sum of what is in no text."""
    outside = 0.0
    for span, (text, begin) in zip(sequence.spans, sources, strict=True):
        indices = np.arange(span.first, span.first + span.count) - begin
        values = sequence_weights[span.position : span.position + span.count]
        inside = (indices >= 0) & (indices < len(weights[text]))
        weights[text][indices[inside]] += values[inside]
        outside += float(values[~inside].sum())
    return outside


def _text_attributions(
    attribution_target: AttributionTarget, weights: Sequence[Floats], vocabulary: Sequence[str]
) -> tuple[TextAttribution, ...]:
    return tuple(
        TextAttribution(
            title=source.title,
            text=source.text,
            tokens=tuple(vocabulary[token_id] for token_id in source.tokens.input_ids),
            offsets=tuple((int(start), int(end)) for start, end in source.tokens.offsets),
            begins_word=tuple(source.tokens.word_starts.tolist()),
            weights=text_weights,
        )
        for source, text_weights in zip(attribution_target.texts, weights, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _PathIntegral:
    """The weights of a sequence's positions (T,), its output at both ends of the path, and the number of steps."""

    weights: Floats
    output: float
    baseline_output: float
    num_steps: int


@dataclass(frozen=True, slots=True)
class _IntegrationPath:
    """The path from a sequence with every token masked to the sequence itself."""

    module: TaskModule
    mask_id: int
    pad_id: int

    def integrate(self, sequence: InputSequence, coefficients: npt.NDArray[Any]) -> _PathIntegral:
        """Return how much each position adds to the linear combination of the sequence's outputs."""
        masked, original = self._endpoints(sequence)
        factors = torch.from_numpy(coefficients).to(original)
        with torch.no_grad():
            end_outputs = self._outputs(sequence, torch.stack([masked, original]), factors)
        baseline_output, output = end_outputs.tolist()
        difference = (original - masked).double().cpu().numpy()  # (T, D)
        endpoints = (masked, original)
        num_steps, gradients = _STEPS, self._gradients(sequence, endpoints, factors, _midpoints(_STEPS))
        while True:
            weights = (gradients / num_steps * difference).sum(1)
            delta = float(weights.sum()) - (output - baseline_output)
            if is_converged(delta, float(np.abs(weights).sum())) or num_steps >= _MAX_STEPS:
                return _PathIntegral(weights, output, baseline_output, num_steps)
            num_steps *= 3
            new_points = np.delete(_midpoints(num_steps), np.s_[1::3])
            gradients += self._gradients(sequence, endpoints, factors, new_points)

    def _endpoints(self, sequence: InputSequence) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the embeddings of the masked and of the original sequence: each (T, D)."""
        input_ids = sequence.input_ids.copy()
        for span in sequence.spans:
            input_ids[span.position : span.position + span.count] = self.mask_id
        masked = replace(sequence, input_ids=input_ids, unknown={})
        embedded = []
        for input_sequence in (masked, sequence):
            batch = batch_of_input_sequences([input_sequence], self.pad_id).to(self._device)
            with torch.no_grad():
                embedded.append(self.module.encoder.embed(batch, self.module.encoder.create_layout(batch)))
        return embedded[0], embedded[1]

    def _gradients(
        self,
        sequence: InputSequence,
        endpoints: tuple[torch.Tensor, torch.Tensor],
        factors: torch.Tensor,
        alphas: npt.NDArray[np.float64],
    ) -> Floats:
        """Return the gradients of the output by the embeddings, summed over points of the path: (T, D)."""
        masked, original = endpoints
        total = np.zeros(original.shape)
        num_points = max(1, _TOKEN_BUDGET // len(original))
        for start in range(0, len(alphas), num_points):
            alpha = torch.from_numpy(alphas[start : start + num_points]).to(original)[:, None, None]
            points = (masked + alpha * (original - masked)).requires_grad_()  # (S, T, D)
            with torch.enable_grad():
                outputs = self._outputs(sequence, points, factors)
            (gradients,) = torch.autograd.grad(outputs.sum(), points)
            total += gradients.double().sum(0).cpu().numpy()
        return total

    def _outputs(self, sequence: InputSequence, points: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """Return (S,): the linear combination of the outputs of embedded sequences (S, T, D)."""
        batch = batch_of_input_sequences([sequence] * len(points), self.pad_id).to(self._device)
        encoder = self.module.encoder
        encoded = encoder.forward_layers(points.flatten(0, 1), encoder.create_layout(batch))
        outputs = self.module.head(encoder.transform_for_head(encoded), batch).reshape(len(points), *factors.shape)
        return (outputs * factors).flatten(1).sum(1)

    @property
    def _device(self) -> torch.device:
        return self.module.encoder.device


def _midpoints(count: int) -> npt.NDArray[np.float64]:
    """Return the midpoints of `count` equal steps from 0 to 1."""
    return (np.arange(count) + 0.5) / count


def example_from_texts(task: Task, texts: Sequence[str]) -> Any:
    """Return the example of plain texts, which fill the task's input fields in order."""
    for index, text in enumerate(texts, 1):
        if not text.strip():
            raise InputError(f"text {index} is empty; every text needs at least one word")
    return example_from_input(task, texts, "the text", "1")
