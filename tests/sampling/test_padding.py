"""Padding: sequences of several lengths become arrays, with a mask that says what is padding."""

import numpy as np

from bertworks.sampling.padding import pad_sequences
from bertworks.sampling.windows import Window


def test_sequences_are_padded_on_the_right_to_the_longest():
    sequences = [Window(np.array(ids), np.array(types), ()) for ids, types in [([5, 6, 7], [0, 0, 1]), ([8], [0])]]
    padded = pad_sequences(sequences, 9)
    assert padded.input_ids.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert padded.token_type_ids.tolist() == [[0, 0, 1], [0, 0, 0]]
    assert padded.lengths.tolist() == [3, 1]
    assert padded.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
