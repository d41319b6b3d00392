"""What every task answers in the same way: the suite that runs over all of them."""

import pytest

from bertworks.datasets.files import Record
from bertworks.datasets.labelled_texts import TextExample
from bertworks.errors import InputError
from bertworks.inference.finetuned import task_window_rule
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.contract import (
    ConsistentTask,
    ExplainableTask,
    Features,
    GenerativeTask,
    LabelledTask,
    ScaledTask,
    Task,
    examples_in,
)
from bertworks.tasks.inputs import describe_input_fields, example_from_input, fields_from_input
from bertworks.tasks.registry import TASKS
from bertworks.tasks.tag import TagExample

WINDOW_RULES = {
    "classify": WindowRule(512, 64),
    "regress": WindowRule(512, 64),
    "choose": WindowRule(512, 64),
    "tag": WindowRule(512, 128),
    "answer": WindowRule(384, 96),
    "translate": WindowRule(512, 64),
}
CONFIGS = {
    "classify": {"id2label": {"0": "no", "1": "yes"}},
    "regress": {"id2label": {"0": "value"}},
    "tag": {"id2label": {"0": "O", "1": "B-X", "2": "I-X"}},
}


def make_task(name: str) -> Task:
    return TASKS[name].from_metadata({}, CONFIGS.get(name, {}))


@pytest.mark.parametrize("name", TASKS)
def test_a_folder_s_window_rule_overrides_the_default(name: str):
    task = make_task(name)
    assert task.default_window_rule == WINDOW_RULES[name]
    assert task_window_rule({}, task, 512) == WINDOW_RULES[name]
    assert task_window_rule({}, task, 64) == WindowRule(64, 16)  # limited to the model's positions
    window = {"max_length": 128, "overlap": 8, "truncate": True}
    assert task_window_rule({"window": window}, task, 512) == WindowRule(128, 8, True)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_reads_each_of_its_input_fields(name: str):
    task = make_task(name)
    for input_fields in task.input_fields:
        fields: dict[str, object] = {field: f"text of {field}" for field in input_fields.names}
        if input_fields.list_name is not None:
            fields[input_fields.list_name] = [f"item {index}" for index in range(input_fields.min_list_items)]
        example = example_from_input(task, fields, "input 3", "3")
        assert (example.id, example.location, example.label) == ("3", "input 3", None)
        texts = [text for value in fields.values() for text in ([value] if isinstance(value, str) else value)]
        assert example.texts == tuple(texts)
        assert fields_from_input(task, texts) == fields
        assert task.matches_config(CONFIGS.get(name, {}))


@pytest.mark.parametrize("name", TASKS)
def test_other_fields_raise_an_error_that_describes_the_task_s_own(name: str):
    task = make_task(name)
    with pytest.raises(InputError) as error:
        example_from_input(task, {"caption": "a cat"}, "input 0", "0")
    assert str(error.value) == f"input 0: the task '{name}' takes {describe_input_fields(task)}"
    with pytest.raises(InputError, match=f"got 0 texts; the task '{name}' takes"):
        fields_from_input(task, [])


def test_input_fields_are_described_as_json():
    assert describe_input_fields(TASKS["classify"]) == '{"text": TEXT} or {"sentence1": TEXT, "sentence2": TEXT}'
    assert describe_input_fields(TASKS["choose"]) == '{"prompt": TEXT, "choices": [TEXT, ...]}'


def test_a_plain_text_is_the_field_text():
    assert fields_from_input(TASKS["tag"], "John lives") == {"text": "John lives"}
    (example,) = TASKS["tag"].read_unlabelled([Record({"text": "John lives"}, "line 1")], {})
    assert example.texts == ("John lives",)


def test_an_unlabelled_list_field_needs_a_list():
    with pytest.raises(InputError, match="the task 'choose' takes"):
        example_from_input(make_task("choose"), {"prompt": "a", "choices": "b"}, "input 0", "0")


def test_features_are_sampled_as_a_whole_unless_they_have_parts():
    features = Features(sequences=())
    assert features.training_parts == (features,)
    assert Features(sequences=(), parts=(features, features)).training_parts == (features, features)
    assert Features(sequences=(), is_trainable=False).training_parts == ()


def test_a_task_example_is_one_example_unless_it_is_a_group():
    assert examples_in(TextExample("1", "here", ("a", "b"))) == (("a", "b"),)
    assert examples_in(TagExample.from_text("a b")) == (("a b",),)


@pytest.mark.parametrize(
    ("protocol", "names"),
    [
        (ScaledTask, ["regress"]),
        (ConsistentTask, ["classify"]),
        (GenerativeTask, ["translate"]),
        (LabelledTask, ["classify", "tag"]),
        (ExplainableTask, ["classify", "regress", "choose", "tag", "answer"]),
    ],
)
def test_optional_parts_of_the_contract(protocol: type, names: list[str]):
    assert [name for name in TASKS if isinstance(make_task(name), protocol)] == names
