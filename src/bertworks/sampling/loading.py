"""Draw examples: a numbered row in, its Example and what is hidden in it out; a pure function, in any process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bertworks.sampling.example import Example
from bertworks.sampling.masking import Hidden
from bertworks.sampling.order import Stream
from bertworks.sampling.streams import Streams


class Arrangement(Protocol):
    """How sentences become examples: pairs, blocks, streams. It knows its split and length, and how many anchors there
    are."""

    @property
    def num_anchors(self) -> int: ...

    def example(self, anchor: float, generator: np.random.Generator) -> Example: ...


class Hider(Protocol):
    """What is hidden in an example, or asked about it."""

    def hide(self, example: Example, generator: np.random.Generator) -> Hidden: ...


@dataclass(frozen=True, slots=True)
class Loader:
    """All examples of one phase in their order.

    Number n is index n mod N of epoch n div N. With `num_fresh_epochs` above 0 the examples repeat after so many
    epochs, pairs, masks and all (1: static masks, as in Google's prepared files); 0 means that they never do.
    """

    arrangement: Arrangement
    hider: Hider
    stream: Stream
    num_fresh_epochs: int = 0

    def draw(self, number: int) -> tuple[Example, Hidden]:
        """Return example `number` of the run, with its places hidden."""
        size = self.arrangement.num_anchors
        epoch, index = divmod(number, size)
        anchor = self.stream.permuted(epoch, index, size)
        drawn = epoch % self.num_fresh_epochs if self.num_fresh_epochs else epoch
        return self.at(drawn, anchor)

    def at(self, epoch: int, anchor: int) -> tuple[Example, Hidden]:
        """Return the example of one anchor in one epoch."""
        generator = self.stream.generator(epoch, anchor)
        example = self.arrangement.example(anchor + self.stream.offset(epoch), generator)
        return example, self.hider.hide(example, generator)

    def goes_on(self, number: int) -> bool | None:
        """Return whether an example goes on behind an earlier one: none has to do with another."""

    def batches(self, count: int, size: int) -> Iterator[range]:
        """Yield the numbers of the first `count` examples, `size` at a time, or of all of them if they are fewer."""
        count = min(count, self.arrangement.num_anchors)
        return (range(start, min(start + size, count)) for start in range(0, count, size))

    def epoch(self, epoch: int) -> Iterator[tuple[Example, Hidden]]:
        """Yield all examples of one epoch, in its order."""
        size = self.arrangement.num_anchors
        return (self.draw(epoch * size + index) for index in range(size))


@dataclass(frozen=True, slots=True)
class Lanes:
    """Examples that go on behind one another: `num_lanes` readers begin at equal distances of a stream and never stop.

    Number n is what reader n mod num_lanes reads in its step n div num_lanes. All have stretches of equal length in a
    step; where a stretch ends follows from its number alone.
    """

    arrangement: Streams
    hider: Hider
    stream: Stream
    num_lanes: int

    def draw(self, number: int) -> tuple[Example, Hidden]:
        """Return example `number` of the run, and what it is asked."""
        step, lane = divmod(number, self.num_lanes)
        size = self.arrangement.num_pieces
        begin = int((self.stream.offset(0) + lane / self.num_lanes) * size)
        example = self.arrangement.cut(begin + self._end(step), begin + self._end(step + 1))
        return example, self.hider.hide(example, self.stream.generator(step, lane))

    def _end(self, step: int) -> int:
        """Return how far readers are before a step: on a grid, give or take the play of the arrangement."""
        play = self.arrangement.play
        moved = int(self.stream.offset(step) * (2 * play + 1)) - play if step else 0
        return step * self.arrangement.usual + moved

    def goes_on(self, number: int) -> bool:
        """Return whether an example goes on behind an earlier one; all but the first of each reader do."""
        return number >= self.num_lanes

    def batches(self, count: int, size: int) -> Iterator[range]:
        """Yield the numbers of about `count` examples: all of the first `size` readers, then those of the next."""
        num_steps = max(1, min(count, self.arrangement.num_anchors) // self.num_lanes)
        for first in range(0, self.num_lanes, size):
            last = min(first + size, self.num_lanes)
            yield from (range(step * self.num_lanes + first, step * self.num_lanes + last) for step in range(num_steps))
