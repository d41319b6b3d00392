"""Cases in, predictions out, in order and in constant memory: a chunk at a time, its rows in batches by length."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertworks.engines.batching import TOKEN_BUDGET, batch_by_token_budget
from bertworks.engines.workers import map_parallel
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.batching import batch_of_input_sequences
from bertworks.tasks.contract import Features, GenerativeTask, InputSequence
from bertworks.tasks.module import TaskModule
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import Tokenizer

# How many cases are looked at together, to find rows of similar length. The first chunks are small, so that the first
# answers come soon.
_FIRST_CHUNK, _CHUNK = 16, 512

# What is counted where a folder's rule cuts long texts.
TRUNCATED_TOKENS = "pieces did not fit and stayed unread, as the model's window rule says"

Outputs = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Predictor:
    """A fine-tuned model at work."""

    module: TaskModule
    tokenizer: Tokenizer
    window_rule: WindowRule

    def predict(self, examples: Iterable[Any], counts: Counts | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield each case with its prediction, in the order they came; what was cut off is added to `counts`."""
        source, size = iter(examples), _FIRST_CHUNK
        while chunk := list(itertools.islice(source, size)):
            size = min(2 * size, _CHUNK)
            questions = [self.module.task.featurize(case, self.tokenizer, self.window_rule) for case in chunk]
            if counts is not None and (num_cut := sum(question.num_truncated for question in questions)):
                counts[TRUNCATED_TOKENS] += num_cut
            for case, question, outputs in zip(chunk, questions, self.outputs(questions), strict=True):
                yield case, self.module.task.decode(case, question, outputs)

    @torch.inference_mode()
    def outputs(self, all_features: Sequence[Features]) -> list[list[Outputs]]:
        """Return what the head says of each row of each question."""
        self.module.eval()
        rows = [row for question in all_features for row in question.sequences]
        found: list[Outputs] = [np.empty(0, dtype=np.float32)] * len(rows)
        num_at_once = self.module.encoder.num_parallel_batches
        batches = batch_by_token_budget(rows, lambda row: len(row.window), TOKEN_BUDGET, max(len(rows), 1), num_at_once)
        for outputs in map_parallel(batches, self._outputs_by_index, num_at_once):
            for number, output in outputs:
                found[number] = output
        own = iter(found)
        return [list(itertools.islice(own, len(question.sequences))) for question in all_features]

    @torch.inference_mode()
    def _outputs_by_index(self, indexed_sequences: Sequence[tuple[int, InputSequence]]) -> list[tuple[int, Outputs]]:
        outputs = self._compute([row for _, row in indexed_sequences])
        return list(zip((number for number, _ in indexed_sequences), outputs, strict=True))

    def _compute(self, sequences: Sequence[InputSequence]) -> list[Outputs]:
        batch = batch_of_input_sequences(sequences, self.tokenizer.specials.pad)
        device = self.module.encoder.device
        if isinstance(self.module.task, GenerativeTask):
            return self.module.task.generate(self.module.encoder, self.module.head, batch.to(device), self.tokenizer)
        outputs = self.module.outputs(batch.to(device)).float().cpu().numpy()
        if batch.positions is not None:
            ends = np.cumsum([0 if row.positions is None else len(row.positions) for row in sequences])
            return np.split(outputs, ends[:-1])
        if outputs.ndim == 3:  # (B, T, 2): each row without its padding
            return [output[: len(row.window)] for row, output in zip(sequences, outputs, strict=True)]
        return list(outputs)
