"""Inputs of a task: texts become fields, and what is no text is refused."""

import pytest

from bertworks.errors import InputError
from bertworks.tasks.classify import Classify
from bertworks.tasks.inputs import fields_from_input


def test_texts_fill_the_fields_of_the_task_in_order():
    assert fields_from_input(Classify, "good") == {"text": "good"}
    assert fields_from_input(Classify, ["good", "bad"]) == {"sentence1": "good", "sentence2": "bad"}


@pytest.mark.parametrize("value", [b"x", bytearray(b"xy"), 3, None])
def test_bytes_are_no_sequence_of_texts(value: object):
    with pytest.raises(InputError, match=r"the input is .*; the task 'classify' takes"):
        fields_from_input(Classify, value)  # type: ignore[arg-type]
