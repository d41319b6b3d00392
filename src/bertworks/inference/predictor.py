"""Cases in, predictions out, in order and in constant memory: a chunk at a time, its rows in batches by length."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertworks.engines.batching import BUDGET, in_budget
from bertworks.engines.workers import at_once
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.batching import batch_of_asked
from bertworks.tasks.contract import Asked, Question, Writing
from bertworks.tasks.module import TaskModule
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import Tokenizer

# How many cases are looked at together, to find rows of similar length. The first chunks are small, so that the first
# answers come soon.
_FIRST_CHUNK, _CHUNK = 16, 512

# What is counted where a folder's rule cuts long texts.
CUT_OFF = "pieces did not fit and stayed unread, as the model's window rule says"

Outputs = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Predictor:
    """A fine-tuned model at work."""

    module: TaskModule
    tokenizer: Tokenizer
    rule: WindowRule

    def predict(self, cases: Iterable[Any], counts: Counts | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield each case with its prediction, in the order they came; what was cut off is added to `counts`."""
        source, size = iter(cases), _FIRST_CHUNK
        while chunk := list(itertools.islice(source, size)):
            size = min(2 * size, _CHUNK)
            questions = [self.module.task.ask(case, self.tokenizer, self.rule) for case in chunk]
            if counts is not None and (num_cut := sum(question.num_cut for question in questions)):
                counts[CUT_OFF] += num_cut
            for case, question, outputs in zip(chunk, questions, self.outputs(questions), strict=True):
                yield case, self.module.task.answer(case, question, outputs)

    @torch.inference_mode()
    def outputs(self, questions: Sequence[Question]) -> list[list[Outputs]]:
        """Return what the head says of each row of each question."""
        self.module.eval()
        rows = [row for question in questions for row in question.rows]
        found: list[Outputs] = [np.empty(0, dtype=np.float32)] * len(rows)
        num_at_once = self.module.encoder.num_at_once
        batches = in_budget(rows, lambda row: len(row.window), BUDGET, max(len(rows), 1), num_at_once)
        for outputs in at_once(batches, self._numbered, num_at_once):
            for number, output in outputs:
                found[number] = output
        own = iter(found)
        return [list(itertools.islice(own, len(question.rows))) for question in questions]

    @torch.inference_mode()
    def _numbered(self, gathered: Sequence[tuple[int, Asked]]) -> list[tuple[int, Outputs]]:
        outputs = self._computed([row for _, row in gathered])
        return list(zip((number for number, _ in gathered), outputs, strict=True))

    def _computed(self, rows: Sequence[Asked]) -> list[Outputs]:
        batch = batch_of_asked(rows, self.tokenizer.specials.pad)
        device = self.module.encoder.device
        if isinstance(self.module.task, Writing):
            return self.module.task.write(self.module.encoder, self.module.head, batch.to(device), self.tokenizer)
        outputs = self.module.outputs(batch.to(device)).float().cpu().numpy()
        if batch.places is not None:
            ends = np.cumsum([0 if row.places is None else len(row.places) for row in rows])
            return np.split(outputs, ends[:-1])
        if outputs.ndim == 3:  # (B, T, 2): each row without its padding
            return [output[: len(row.window)] for row, output in zip(rows, outputs, strict=True)]
        return list(outputs)
