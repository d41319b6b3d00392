"""Messages in Chinese: every text that people read has an entry, every entry is used, and values are kept."""

import json
import re
import string
from pathlib import Path

import pytest
from message_strings import SOURCE, all_templates, error_templates, visible_templates

from bertworks.messages import (
    _is_distinctive,
    fill,
    language,
    localize,
    localize_sentences,
    read_catalogue,
    requested_language,
)

CATALOGUE = read_catalogue("zh")
# Texts of click, typer and pydantic, names of losses and metrics, a key of run.json: not strings of this source.
FOREIGN = {
    "MLM loss",
    "NSP loss",
    "SOP loss",
    "LM loss",
    "NSP accuracy",
    "SOP accuracy",
    "Calibration error",
    "calibration error",
    "Arguments",
    "memory gib",
    "Options",
    "Missing argument {}.",
    "Missing option {}.",
    "Invalid value for {}: {}",
    "Option {} requires an argument.",
    "Option {} does not take a value.",
    "Got unexpected extra argument(s) ({})",
    "No such option: {}",
    "Input should be a valid integer, unable to parse string as an integer",
    "Input should be a valid number, unable to parse string as a number",
    "Input should be greater than or equal to {}",
    "Input should be less than or equal to {}",
    "Input should be greater than {}",
    "Input should be less than {}",
    "Input should be {}",
    "Input should be a valid string",
    "Input should be a valid integer",
    "Input should be a valid number",
    "Input should be a valid boolean",
    "Input should be a valid list",
    "Input should be an object",
    "Field required",
    "Extra inputs are not permitted",
    "Invalid JSON: {}",
    "List should have at least {} item after validation, not {}",
    "List should have at least {} items after validation, not {}",
    "List should have at most {} items after validation, not {}",
    "Commands",
    "Show this message and exit.",
    "Install completion for the current shell.",
    "Show completion for the current shell, to copy it or customize the installation.",
}


@pytest.fixture
def chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTWORKS_LANG", "zh")


def as_template(key: str) -> str:
    return key.replace("{~}", "{}")


def test_every_text_that_people_read_has_a_chinese_entry():
    keys = {as_template(key) for key in CATALOGUE}
    missing = {text: place for text, place in visible_templates().items() if text not in keys}
    assert missing == {}


def test_every_entry_is_used():
    unused = {as_template(key) for key in CATALOGUE} - all_templates() - FOREIGN
    assert sorted(unused) == []


def test_translations_use_only_values_of_their_key():
    wrong = {}
    for key, translation in CATALOGUE.items():
        numbers = {int(name) for _, name, _, _ in string.Formatter().parse(translation) if name is not None}
        if numbers and max(numbers) >= len(re.findall(r"\{~?\}", key)):
            wrong[key] = translation
    assert wrong == {}


@pytest.mark.usefixtures("chinese")
def test_each_message_is_recognized_by_its_own_entry():
    """A message whose values are known: no other entry may claim it, and every value stays where it belongs."""
    wrong = {}
    for key, translation in CATALOGUE.items():
        values = [f"v{number}" for number in range(len(re.findall(r"\{~?\}", key)))]
        if values and _is_distinctive(key):
            message, expected = as_template(key).format(*values), translation.format(*values)
            if localize(message) != expected:
                wrong[key] = localize(message)
    assert wrong == {}


def test_every_error_has_a_chinese_entry():
    keys = {as_template(key) for key in CATALOGUE}
    missing = {text: place for text, place in error_templates().items() if text not in keys}
    assert missing == {}


def test_no_text_is_its_own_heading_in_html():
    files = [path for path in (SOURCE / "reports").glob("*.py") if re.search(r"<h2>[A-Za-z]", path.read_text("utf-8"))]
    assert files == []


def test_console_and_page_say_the_same(monkeypatch: pytest.MonkeyPatch):
    def messages(name: str) -> dict[str, str]:
        text = (SOURCE / "serving" / "page" / name).read_text(encoding="utf-8")
        return {
            key: json.loads(value) for key, value in re.findall(r'^  "([\w.-]+)":\s+("(?:[^"\\]|\\.)*"),$', text, re.M)
        }

    english, page = messages("english.js"), messages("chinese.js")
    both = {text: page[key] for key, text in english.items() if text in CATALOGUE and key in page}
    assert len(both) > 5
    assert {text: (CATALOGUE[text], other) for text, other in both.items() if CATALOGUE[text] != other} == {}


@pytest.mark.parametrize(
    ("variables", "code"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"BERTWORKS_LANG": "en", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"BERTWORKS_LANG": "zh", "LC_ALL": "C"}, "zh"),
        ({}, "en"),
    ],
)
def test_the_language_follows_the_environment(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], code: str):
    for name in ("BERTWORKS_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert language() == code


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-US,en;q=0.9,zh;q=0.8", "en"),
        ("fr, zh-TW", "zh"),
        ("ZH", "zh"),
        ("*", "en"),
        ("", "en"),
    ],
)
def test_a_request_may_ask_for_a_language(monkeypatch: pytest.MonkeyPatch, header: str, code: str):
    monkeypatch.setenv("BERTWORKS_LANG", "en")
    assert requested_language(header) == code


@pytest.mark.usefixtures("chinese")
def test_values_are_kept_and_messages_inside_are_translated():
    assert localize("saved /tmp/run/step-1") == "已保存 /tmp/run/step-1"
    assert localize("warning: no TensorBoard events: x") == "警告：未写入 TensorBoard 事件：x"
    assert localize("submission: a.tsv, 1,725 predictions") == "提交文件：a.tsv，共 1,725 条预测"
    assert localize("an unknown sentence of 3 words") == "an unknown sentence of 3 words"
    assert fill("{} of {} {}", 3, 5, "MB") == "3 / 5 MB"


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize(
    ("english", "chinese_text"),
    [
        (
            "t.csv: no column 'x'; the columns are 'a', 'b'; name another with --label",
            "t.csv：没有列 'x'；现有列：'a', 'b'；请用 --label 指定其他列",
        ),
        (
            "a.txt: no column looks like the label; the columns are 'text'; name it with --label, or add a header line "
            "if the file has none (the file is read as data for the model's task, 'classify')",
            "a.txt：没有看起来像 label 的列；现有列：'text'；请用 --label 指定，若文件没有表头请添加"
            "（该文件按模型任务 'classify' 的数据读取）",
        ),
        ("f cannot be read: it is a folder; give a file", "f 无法读取：它是目录；请给出文件"),
        ("demo.toml, model: batch_size is 0; it must be at least 1", "demo.toml, model：batch_size 为 0；至少为 1"),
        ("r.toml, seed: expected an integer, got 'a'", "r.toml, seed：应为整数，实为 'a'"),
        ("compared on the 36 built-in English and Chinese texts", "比较所用文本：36 条内置的中英文文本"),
        ("linear layers in fp32: none", "fp32 线性层：无"),
        (
            "pooling: mean (not set by the model; choose with --pooling)",
            "池化：mean（模型未指定；可用 --pooling 选择）",
        ),
        (
            "The training loss ended at 0.532; knowing the class frequencies alone gives 0.693. "
            "So nothing was learned: 3 steps are too few. There are no restarts left: the model is saved as it is.",
            "训练损失最终为 0.532；只知道各类别频率时为 0.693。因此什么也没有学到：3 步太少。"
            "重新训练的次数已用完：按现状保存模型。",
        ),
        (
            "underfits: accuracy is 0.500 on train and 0.400 on dev; try more epochs, a higher learning rate or a "
            "larger model. The majority baseline is at least as good on dev, and far cheaper: its accuracy is 0.6 on "
            "dev, that of this model 0.4.",
            "欠拟合：训练集上 accuracy 为 0.500，验证集上为 0.400；请增加训练轮数、提高学习率或使用更大的模型。"
            "多数类基线在 dev 上不逊于本模型，且成本低得多：其 accuracy 为 0.6 on dev，本模型为 0.4。",
        ),
        (
            "defaults for this model and data: learning_rate 0.001 (hidden size 256); epochs 3 (600 steps)",
            "针对该模型和数据的默认值：learning_rate 为 0.001（隐藏维度 256）；epochs 为 3（600 步）",
        ),
        ("note: nobody knows this", "note: nobody knows this"),
    ],
)
def test_the_entry_that_explains_most_of_a_message_translates_it(english: str, chinese_text: str):
    assert localize(english) == chinese_text


@pytest.mark.usefixtures("chinese")
def test_sentences_are_translated_one_by_one():
    text = "3 of 10 are misclassified. Rows are the true class, columns the predicted one."
    assert localize_sentences(text) == "10 个中有 3 个分类错误。行为真实类别，列为预测类别。"


def test_english_stays_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BERTWORKS_LANG", "en")
    assert localize("saved x") == "saved x"
    assert fill("{} left", "3 s") == "3 s left"


def test_the_catalogue_is_in_the_package():
    assert '"messages/*.json"' in (Path(SOURCE).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
