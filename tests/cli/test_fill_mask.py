"""`bertworks fill-mask`: JSON, lines to read, one sentence for every user error."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import RunCommand

from bertworks.encoders.bert import HEADS, Bert, BertConfig, tensor_names
from bertworks.encoders.config import config_to_dict
from bertworks.models.folder import write_folder
from bertworks.models.tensor_names import combine_name_tables, to_hf_names
from bertworks.objectives.mlm import MlmModule
from bertworks.vocabulary.tokenizer import Tokenizer

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"今天气好坏我们去公园玩吧，。"]
WEATHER = "今天天气[MASK][MASK]，我们去公园玩吧。"


@pytest.fixture
def bertworks(folder: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand) -> RunCommand:
    """Run the command line in this process, beside the model: starting torch anew takes seconds."""
    monkeypatch.chdir(folder)

    return run_command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model in which 好 has probability 1/2, 坏 1/4, and 12 others the rest."""
    folder = tmp_path_factory.mktemp("fill-mask")
    (folder / "empty").mkdir()
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    config = BertConfig(
        vocab_size=len(TOKENS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=32,
    )
    module = MlmModule(Bert(config, torch.Generator().manual_seed(0)), has_pair_head=False)
    with torch.no_grad():
        module.mlm_head.norm.weight.zero_()  # the logits are then the bias
        module.mlm_head.bias.fill_(0.0)
        rest = len(TOKENS) - 5 - 2
        module.mlm_head.bias[TOKENS.index("好")] = torch.tensor(2.0 * rest).log()
        module.mlm_head.bias[TOKENS.index("坏")] = torch.tensor(1.0 * rest).log()
    tensors = to_hf_names(
        module.state_dict(), combine_name_tables({"encoder": tensor_names(config), "mlm_head": HEADS["mlm"]})
    )
    tokenizer = Tokenizer.load(folder / "vocab.txt")
    write_folder(folder / "model", config_to_dict(config, ["BertForMaskedLM"]), tensors, tokenizer, {})
    return folder


def test_fill_mask_prints_one_line_of_json(folder: Path):
    command = [sys.executable, "-m", "bertworks", "fill-mask", "model", WEATHER, "--top-k", "2", "--json"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    values = json.loads(result.stdout)
    assert list(values) == ["text", "mask_candidates", "sequences"]
    assert values["text"] == WEATHER
    assert [[candidate["token"] for candidate in mask] for mask in values["mask_candidates"]] == [
        ["好", "坏"],
        ["好", "坏"],
    ]
    assert [candidate["probability"] for candidate in values["mask_candidates"][0]] == pytest.approx([0.5, 0.25])
    assert list(values["sequences"][0]) == ["text", "tokens", "probability"]
    assert values["sequences"][0]["text"] == "今天天气好好，我们去公园玩吧。"
    assert values["sequences"][0]["tokens"] == ["好", "好"]
    assert [sequence["probability"] for sequence in values["sequences"]] == pytest.approx([0.25, 0.125])


def test_fill_mask_prints_the_candidates_of_each_mask_and_the_filled_text(bertworks: RunCommand):
    result = bertworks("fill-mask", "model", "今天天气[MASK]。", "--top-k", "2")
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows == [
        ["mask", "1"],
        ["50.0%", "好"],
        ["25.0%", "坏"],
        ["filled"],
        ["50.0%", "今天天气好。"],
        ["25.0%", "今天天气坏。"],
    ]


def test_many_masks_are_printed_whatever_the_terminal_width(bertworks: RunCommand):
    result = bertworks("fill-mask", "model", "[MASK]" * 20, "--top-k", "1")
    assert result.stdout.count("50.0%  好\n") == 20
    assert f"  {'好' * 20}\n" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model", "今天天气好。"], "[MASK]"),
        (["model", "天" * 40 + "[MASK]"], "43 tokens"),
        (["./no/such/folder", WEATHER], "there is no folder ./no/such/folder"),
        (["vocab.txt", WEATHER], "vocab.txt is a file"),
        ([".", WEATHER], ". is the folder of a run; give that of its model: model"),
        (["empty", WEATHER], "empty has no weights"),
    ],
)
def test_a_user_error_is_one_sentence_and_exit_code_2(bertworks: RunCommand, arguments: list[str], message: str):
    result = bertworks("fill-mask", *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.startswith("bertworks: ")
    assert result.stderr.count("\n") == 1


def test_an_encoder_without_the_head_is_refused(bertworks: RunCommand, minilm: Path):
    result = bertworks("fill-mask", str(minilm), "I like [MASK].")
    assert result.returncode == 2
    assert "has no masked-LM head" in result.stderr


def test_a_text_that_the_vocabulary_cannot_read_is_a_warning(bertworks: RunCommand):
    result = bertworks("fill-mask", "model", "The weather is [MASK] today")
    assert result.returncode == 0
    assert "warning: 100% of 4 tokens are unknown to the vocabulary ([UNK])" in result.stderr
    assert "most often: is the today weather" in result.stderr
    assert "warning" not in bertworks("fill-mask", "model", WEATHER).stderr
