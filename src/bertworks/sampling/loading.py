"""Draw examples: a numbered row in, its Example and what is hidden in it out; a pure function, in any process."""

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
    """How sentences become examples: pairs, blocks, streams. It knows its split and length, and how many anchors there
    are."""

    @property
    def num_anchors(self) -> int: ...

    def example(self, anchor: float, generator: np.random.Generator) -> Example: ...


class Corruption(Protocol):
    """What is hidden in an example, or asked about it."""

    def mask(self, example: Example, generator: np.random.Generator) -> MaskedExample: ...


@dataclass(frozen=True, slots=True)
class Loader:
    """All examples of one phase in their order.

    Number n is index n mod N of epoch n div N. With `num_fresh_epochs` above 0 the examples repeat after so many
    epochs, pairs, masks and all (1: static masks, as in Google's prepared files); 0 means that they never do.
    """

    sampler: ExampleSampler
    corruption: Corruption
    order: ExampleOrder
    num_fresh_epochs: int = 0

    def load_example(self, number: int) -> tuple[Example, MaskedExample]:
        """Return example `number` of the run, with its places hidden."""
        size = self.sampler.num_anchors
        epoch, index = divmod(number, size)
        anchor = self.order.permute(epoch, index, size)
        drawn = epoch % self.num_fresh_epochs if self.num_fresh_epochs else epoch
        return self.example_at(drawn, anchor)

    def example_at(self, epoch: int, anchor: int) -> tuple[Example, MaskedExample]:
        """Return the example of one anchor in one epoch."""
        generator = self.order.generator(epoch, anchor)
        example = self.sampler.example(anchor + self.order.offset(epoch), generator)
        return example, self.corruption.mask(example, generator)

    def is_continuation(self, number: int) -> bool | None:
        """Return whether an example goes on behind an earlier one: none has to do with another."""

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
    """Examples that go on behind one another: `num_lanes` readers begin at equal distances of a stream and never stop.

    Number n is what reader n mod num_lanes reads in its step n div num_lanes. All have stretches of equal length in a
    step; where a stretch ends follows from its number alone.
    """

    sampler: Streams
    corruption: Corruption
    order: ExampleOrder
    num_streams: int

    def load_example(self, number: int) -> tuple[Example, MaskedExample]:
        """Return example `number` of the run, and what it is asked."""
        step, lane = divmod(number, self.num_streams)
        size = self.sampler.num_tokens
        begin = int((self.order.offset(0) + lane / self.num_streams) * size)
        example = self.sampler.example_between(begin + self._step_offset(step), begin + self._step_offset(step + 1))
        return example, self.corruption.mask(example, self.order.generator(step, lane))

    def _step_offset(self, step: int) -> int:
        """Return how far readers are before a step: on a grid, give or take the play of the arrangement."""
        play = self.sampler.jitter
        moved = int(self.order.offset(step) * (2 * play + 1)) - play if step else 0
        return step * self.sampler.mean_length + moved

    def is_continuation(self, number: int) -> bool:
        """Return whether an example goes on behind an earlier one; all but the first of each reader do."""
        return number >= self.num_streams

    def batches(self, count: int, size: int) -> Iterator[range]:
        """Yield the numbers of about `count` examples: all of the first `size` readers, then those of the next."""
        num_steps = max(1, min(count, self.sampler.num_anchors) // self.num_streams)
        for first in range(0, self.num_streams, size):
            last = min(first + size, self.num_streams)
            yield from (
                range(step * self.num_streams + first, step * self.num_streams + last) for step in range(num_steps)
            )
