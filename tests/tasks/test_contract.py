"""What every task answers in the same way: the one suite that runs over all of them."""

import pytest

from bertworks.datasets.labelled_texts import TextExample
from bertworks.inference.finetuned import read_window_rule
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.contract import Features, ScaledTask, examples_in
from bertworks.tasks.registry import TASKS
from bertworks.tasks.regress import Regress
from bertworks.tasks.tag import TagExample

RULES = {
    "classify": WindowRule(512, 64),
    "regress": WindowRule(512, 64),
    "choose": WindowRule(512, 64),
    "tag": WindowRule(512, 128),
    "answer": WindowRule(384, 96),
    "translate": WindowRule(512, 64),
}
SOME = {
    "classify": {"id2label": {"0": "no", "1": "yes"}},
    "regress": {"id2label": {"0": "value"}},
    "tag": {"id2label": {"0": "O", "1": "B-X", "2": "I-X"}},
}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_states_its_usual_rule_and_a_folder_s_own_goes_before_it(name: str):
    task = TASKS[name].from_metadata({}, SOME.get(name, {}))
    assert task.default_window_rule == RULES[name]
    assert read_window_rule({}, task, 512) == RULES[name]
    assert read_window_rule({}, task, 64) == WindowRule(64, 16)  # no longer than the model reads
    assert read_window_rule({"window": {"length": 128, "overlap": 8, "truncate": True}}, task, 512) == WindowRule(
        128, 8, True
    )


def test_a_question_is_drawn_whole_unless_it_has_parts():
    one = Features(())
    assert one.training_parts == (one,)
    assert Features((), parts=(one, one)).training_parts == (one, one)
    assert Features((), is_trainable=False).training_parts == ()


def test_a_case_is_one_example_unless_it_gathers_several():
    assert examples_in(TextExample("1", "here", ("a", "b"))) == (("a", "b"),)
    assert examples_in(TagExample.from_text("a b")) == (("a b",),)


def test_only_values_are_learned_in_a_scale_of_their_own():
    scaled = [name for name in TASKS if isinstance(TASKS[name].from_metadata({}, SOME.get(name, {})), ScaledTask)]
    assert scaled == [Regress.name]
