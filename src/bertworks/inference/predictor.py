"""Examples in, predictions out, in order and in constant memory: a chunk at a time, its sequences batched by length.

B sequences, T positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertworks.engines.batching import TOKEN_BUDGET, batch_by_token_budget
from bertworks.engines.workers import map_parallel
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.contract import Features, InputSequence
from bertworks.text.document import Counts
from bertworks.vocabulary.text_coverage import TextCoverage
from bertworks.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertworks.tasks.module import TaskModule

# Sequences of similar length are batched within a chunk of examples. Chunks start small so that the first predictions
# come soon.
_FIRST_CHUNK_SIZE, _MAX_CHUNK_SIZE = 16, 512

# The key in `counts` of what a folder's window rule truncates.
TRUNCATED_TOKENS = "tokens were truncated by the model's window rule"

Outputs = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Predictor:
    """A fine-tuned model with the tokenizer and window rule that turn examples into its input.

    `columns` are those of its training file by role, if its folder records them.
    """

    module: TaskModule
    tokenizer: Tokenizer
    window_rule: WindowRule
    columns: Mapping[str, str] = field(default_factory=dict)

    def predict(
        self, examples: Iterable[Any], counts: Counts | None = None, coverage: TextCoverage | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Yield each example with its prediction, in order.

        The number of truncated tokens is added to `counts`, and the tokens themselves to `coverage`.
        """
        source, chunk_size = iter(examples), _FIRST_CHUNK_SIZE
        task = self.module.task
        while chunk := list(itertools.islice(source, chunk_size)):
            chunk_size = min(2 * chunk_size, _MAX_CHUNK_SIZE)
            all_features = [task.featurize(example, self.tokenizer, self.window_rule) for example in chunk]
            if counts is not None and (num_truncated := sum(features.num_truncated for features in all_features)):
                counts[TRUNCATED_TOKENS] += num_truncated
            if coverage is not None:
                coverage.add(sequence for features in all_features for sequence in features.sequences)
            for example, features, outputs in zip(chunk, all_features, self.outputs(all_features), strict=True):
                yield example, task.decode(example, features, outputs)

    def new_coverage(self) -> TextCoverage:
        """Return an empty TextCoverage for the vocabulary of this model."""
        return TextCoverage(self.tokenizer, self.module.encoder.reads_characters)

    def outputs(self, all_features: Sequence[Features]) -> list[list[Outputs]]:
        """Return the head's output for each sequence of each example."""
        self.module.eval()
        sequences = [sequence for features in all_features for sequence in features.sequences]
        outputs: list[Outputs] = [np.empty(0, dtype=np.float32)] * len(sequences)
        num_parallel = self.module.encoder.num_parallel_batches
        batches = batch_by_token_budget(
            sequences, lambda sequence: len(sequence), TOKEN_BUDGET, max(len(sequences), 1), num_parallel
        )
        for indexed_outputs in map_parallel(batches, self._outputs_by_index, num_parallel):
            for index, output in indexed_outputs:
                outputs[index] = output
        remaining = iter(outputs)
        return [list(itertools.islice(remaining, len(features.sequences))) for features in all_features]

    def _outputs_by_index(self, indexed_sequences: Sequence[tuple[int, InputSequence]]) -> list[tuple[int, Outputs]]:
        outputs = self.module.compute_outputs([sequence for _, sequence in indexed_sequences], self.tokenizer)
        return list(zip((index for index, _ in indexed_sequences), outputs, strict=True))
