"""Example loading: an example number in, its Example and MaskedExample out; a pure function, in any process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bertworks.sampling.example import Example
from bertworks.sampling.masking import MaskedExample
from bertworks.sampling.order import ExampleOrder
from bertworks.sampling.streams import Streams


class ExampleSampler(Protocol):
    """Makes examples from a split: pairs, blocks, streams."""

    @property
    def num_anchors(self) -> int: ...

    def example(self, anchor: float, generator: np.random.Generator) -> Example: ...


class Corruption(Protocol):
    """Makes the input and the targets of an example: masking, permutation, next tokens."""

    def mask(self, example: Example, generator: np.random.Generator) -> MaskedExample: ...


@dataclass(frozen=True, slots=True)
class Loader:
    """All examples of one phase in their order.

    With N anchors, example n is index n mod N of epoch n div N. If `num_fresh_epochs` > 0, examples repeat after that
    many epochs, with the same pairs and masks (1: static masking, as in Google's prepared files); with 0 they never do.
    """

    sampler: ExampleSampler
    corruption: Corruption
    order: ExampleOrder
    num_fresh_epochs: int = 0

    def load_example(self, number: int) -> tuple[Example, MaskedExample]:
        """Return example `number` of the run, unmasked and masked."""
        num_anchors = self.sampler.num_anchors
        epoch, index = divmod(number, num_anchors)
        anchor = self.order.permute(epoch, index, num_anchors)
        seed_epoch = epoch % self.num_fresh_epochs if self.num_fresh_epochs else epoch
        return self.example_at(seed_epoch, anchor)

    def example_at(self, epoch: int, anchor: int) -> tuple[Example, MaskedExample]:
        """Return the example at an anchor in an epoch."""
        generator = self.order.generator(epoch, anchor)
        example = self.sampler.example(anchor + self.order.offset(epoch), generator)
        return example, self.corruption.mask(example, generator)

    def is_continuation(self, number: int) -> bool | None:
        """Return None: the examples are independent."""

    def batches(self, count: int, size: int) -> Iterator[range]:
        """Yield the numbers of the first `count` examples, `size` at a time, or of all of them if they are fewer."""
        count = min(count, self.sampler.num_anchors)
        return (range(start, min(start + size, count)) for start in range(0, count, size))

    def epoch(self, epoch: int) -> Iterator[tuple[Example, MaskedExample]]:
        """Yield all examples of one epoch, in its order."""
        size = self.sampler.num_anchors
        return (self.load_example(epoch * size + index) for index in range(size))


@dataclass(frozen=True, slots=True)
class StatefulLoader:
    """Examples that continue each other: `num_streams` streams start at equal distances and never end.

    Example n is the span of stream n mod num_streams in step n div num_streams. In one step all spans have equal
    length; the end of a span is a function of its step.
    """

    sampler: Streams
    corruption: Corruption
    order: ExampleOrder
    num_streams: int

    def load_example(self, number: int) -> tuple[Example, MaskedExample]:
        """Return example `number` of the run, unmasked and masked."""
        step, stream = divmod(number, self.num_streams)
        start = int((self.order.offset(0) + stream / self.num_streams) * self.sampler.num_tokens)
        example = self.sampler.example_between(start + self._step_offset(step), start + self._step_offset(step + 1))
        return example, self.corruption.mask(example, self.order.generator(step, stream))

    def _step_offset(self, step: int) -> int:
        """Return the token offset of a step in its stream: a multiple of the mean length, plus or minus jitter."""
        jitter = self.sampler.jitter
        shift = int(self.order.offset(step) * (2 * jitter + 1)) - jitter if step else 0
        return step * self.sampler.mean_length + shift

    def is_continuation(self, number: int) -> bool:
        """Return whether an example continues an earlier one; all but the first of each stream do."""
        return number >= self.num_streams

    def batches(self, count: int, size: int) -> Iterator[range]:
        """Yield the numbers of about `count` examples in batches: all of streams 0..size-1, then of the next `size`."""
        num_steps = max(1, min(count, self.sampler.num_anchors) // self.num_streams)
        for first in range(0, self.num_streams, size):
            last = min(first + size, self.num_streams)
            yield from (
                range(step * self.num_streams + first, step * self.num_streams + last) for step in range(num_steps)
            )
