"""What every task answers in the same way: the one suite that runs over all of them."""

import pytest

from bertworks.datasets.labelled_texts import TextCase
from bertworks.inference.finetuned import rule_in
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.contract import Question, Scaled, examples_in
from bertworks.tasks.registry import TASKS
from bertworks.tasks.regress import Regress
from bertworks.tasks.tag import TagCase

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
    task = TASKS[name].told({}, SOME.get(name, {}))
    assert task.default_rule == RULES[name]
    assert rule_in({}, task, 512) == RULES[name]
    assert rule_in({}, task, 64) == WindowRule(64, 16)  # no longer than the model reads
    assert rule_in({"window": {"length": 128, "overlap": 8, "truncate": True}}, task, 512) == WindowRule(128, 8, True)


def test_a_question_is_drawn_whole_unless_it_has_parts():
    one = Question(())
    assert one.drawn == (one,)
    assert Question((), parts=(one, one)).drawn == (one, one)
    assert Question((), teaches=False).drawn == ()


def test_a_case_is_one_example_unless_it_gathers_several():
    assert examples_in(TextCase("1", "here", ("a", "b"))) == (("a", "b"),)
    assert examples_in(TagCase.of_text("a b")) == (("a b",),)


def test_only_values_are_learned_in_a_scale_of_their_own():
    scaled = [name for name in TASKS if isinstance(TASKS[name].told({}, SOME.get(name, {})), Scaled)]
    assert scaled == [Regress.name]
