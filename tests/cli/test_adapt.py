"""`bertworks adapt` from end to end: a tiny model, a domain with words of its own, and the model that knows them."""

import random
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from command_line import RunCommand, exit_code
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from bertworks.embeddings.pooling import read_pooling
from bertworks.inference.model import load
from bertworks.models.folder import read_folder

WORDS = "river stone cloud garden window letter winter bread silver morning road engine".split()
TEXTS = ["river stone", "a long letter of winter morning and silver bread by the engine in the garden"]
DOMAIN = "cardiogram cardio cars".split()  # three, two and two pieces
# The id of the free slot is 5, that of the last piece 23.
TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[unused0]",
    ".",
    "the",
    *WORDS,
    *"car ##dio ##gram ##s".split(),
]
TABLE, BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
RECIPE = """
batch_size = 8
warmup_steps = 1
num_eval_examples = 8

[[phases]]
max_length = 16
steps = 3
"""
MODEL = """
[model]
size = "tiny"
hidden_size = 16
num_attention_heads = 2
max_position_embeddings = 32
"""
# A rate so small that no weight moves: the adapted model is what it was before the first step.
STANDING = ["--learning-rate", "1e-30"]


@pytest.fixture
def bertworks(folder: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand) -> RunCommand:
    """Run the command line in the folder."""
    monkeypatch.chdir(folder)
    return run_command


def written_text(words: list[str], seed: int) -> str:
    """Forty documents of six short sentences."""
    draw = random.Random(seed)
    documents = [
        "\n".join("The " + " ".join(draw.choices(words, k=draw.randint(3, 7))) + "." for _ in range(6))
        for _ in range(40)
    ]
    return "\n\n".join(documents) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of three steps in general/model, and a domain's text prepared with its new words."""
    folder = tmp_path_factory.mktemp("adapt")
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    (folder / "general.txt").write_text(written_text(WORDS, 5), encoding="utf-8")
    (folder / "domain.txt").write_text(written_text([*WORDS, *DOMAIN], 6), encoding="utf-8")
    (folder / "short.toml").write_text(RECIPE, encoding="utf-8")
    (folder / "small.toml").write_text(RECIPE + MODEL, encoding="utf-8")
    commands = [
        "prepare general.txt --vocab vocab.txt --output general-corpus --workers 1",
        "pretrain small.toml --data general-corpus --output general",
        "vocab extend general/model domain.txt --output domain-vocab --workers 1",
        "prepare domain.txt --vocab domain-vocab --output domain-corpus --workers 1",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in commands:
            assert exit_code(patch, *command.split()) == 0, command
    return folder


@pytest.mark.usefixtures("one_thread")
def test_a_model_is_adapted_to_a_domain_and_loads_in_transformers(bertworks: RunCommand, folder: Path):
    result = bertworks("adapt", "general/model", "--data", "domain-corpus", "--output", "run", "--recipe", "short.toml")
    assert result.returncode == 0, result.stderr
    assert "3 new tokens" in result.stdout
    assert re.search(r"'cardiogram'.*mean of car ##dio ##gram", result.stdout)
    assert "held-out, step 3: loss" in result.stdout
    model = transformers.BertForPreTraining.from_pretrained(folder / "run" / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "run" / "model")
    assert model.config.vocab_size == len(tokenizer) == len(TOKENS) + 2  # the third word took the free slot
    assert tokenizer.tokenize("The cardiogram, cars and cardio")[:2] == ["the", "cardiogram"]
    assert set(DOMAIN) <= set(tokenizer.get_vocab())
    before = read_folder(folder / "general" / "model").tensors
    assert not torch.equal(read_folder(folder / "run" / "model").tensors[TABLE][: len(TOKENS)], before[TABLE])


@pytest.mark.usefixtures("one_thread")
def test_a_sentence_transformers_model_stays_one(bertworks: RunCommand, folder: Path):
    modules = [Transformer("general/model", max_seq_length=12), Pooling(16, pooling_mode="cls"), Normalize()]
    peer = SentenceTransformer(modules=modules, device="cpu", prompts={"query": "the "}, default_prompt_name="query")
    peer.save("sentences")
    arguments = ["--data", "general-corpus", "--output", "adapted", "--recipe", "short.toml", "--precision", "fp32"]
    assert bertworks("adapt", "sentences", *arguments).returncode == 0
    pooling = read_pooling(folder / "adapted" / "model")
    assert pooling == read_pooling(folder / "sentences")
    assert (pooling.kinds, pooling.normalize, pooling.prompt, pooling.max_length) == (("cls",), True, "the ", 12)
    adapted = SentenceTransformer("adapted/model", device="cpu").encode(TEXTS)
    ours = load("adapted/model", precision="fp32").encode(TEXTS, truncate=True)
    np.testing.assert_allclose(ours, adapted, atol=1e-5)
    assert np.abs(adapted - peer.encode(TEXTS)).max() > 1e-5


@pytest.mark.usefixtures("one_thread")
def test_before_the_first_step_old_rows_are_kept_and_new_ones_are_means(bertworks: RunCommand, folder: Path):
    arguments = ["--data", "domain-corpus", "--output", "standing", "--recipe", "short.toml", *STANDING]
    result = bertworks("adapt", "general/model", *arguments)
    assert result.returncode == 0, result.stderr
    old, new = read_folder(folder / "general" / "model"), read_folder(folder / "standing" / "model")
    kept = [number for number in range(len(TOKENS)) if TOKENS[number] != "[unused0]"]
    for name in (TABLE, BIAS):
        assert torch.equal(new.tensors[name][kept], old.tensors[name][kept])
        for word, split in (("cardiogram", ["car", "##dio", "##gram"]), ("cars", ["car", "##s"])):
            mean = old.tensors[name][[TOKENS.index(piece) for piece in split]].mean(0)
            assert torch.equal(new.tensors[name][new.tokenizer.token_to_id(word)], mean)
    others = [name for name in old.tensors if name not in (TABLE, BIAS)]
    assert [name for name in others if not torch.equal(new.tensors[name], old.tensors[name])] == []


@pytest.mark.usefixtures("one_thread")
def test_the_model_s_own_vocabulary_adds_nothing(bertworks: RunCommand, folder: Path):
    arguments = ["--data", "general-corpus", "--output", "same", "--recipe", "short.toml", *STANDING]
    result = bertworks("adapt", "general/model", *arguments)
    assert result.returncode == 0, result.stderr
    assert "new pieces" not in result.stdout
    old, new = read_folder(folder / "general" / "model"), read_folder(folder / "same" / "model")
    assert [name for name in old.tensors if not torch.equal(new.tensors[name], old.tensors[name])] == []


@pytest.mark.usefixtures("one_thread")
def test_heads_that_the_model_lacks_are_drawn_and_told(bertworks: RunCommand, folder: Path):
    bare = transformers.BertModel.from_pretrained(folder / "general" / "model", add_pooling_layer=False)
    bare.save_pretrained(folder / "bare")
    transformers.AutoTokenizer.from_pretrained(folder / "general" / "model").save_pretrained(folder / "bare")
    arguments = ["--data", "domain-corpus", "--output", "headless", "--recipe", "short.toml"]
    result = bertworks("adapt", "bare", *arguments)
    assert result.returncode == 0, result.stderr
    told = next(line for line in result.stdout.splitlines() if "cls.predictions.transform.dense.weight" in line)
    assert "bert.pooler.dense.weight" in told
    assert "cls.seq_relationship.weight" in told
    assert TABLE not in told


@pytest.mark.usefixtures("one_thread")
def test_phases_longer_than_the_model_s_positions_are_shortened(bertworks: RunCommand, folder: Path):
    phases = "phases=[{max_length=16, steps=1}, {max_length=64, steps=1}]"
    arguments = ["--data", "domain-corpus", "--output", "shortened", "--recipe", "short.toml", "--set", phases]
    result = bertworks("adapt", "general/model", *arguments)
    assert result.returncode == 0, result.stderr
    assert "the model has 32 positions: phases of 64 tokens are shortened to that" in result.stdout
    recipe = tomllib.loads((folder / "shortened" / "recipe.toml").read_text(encoding="utf-8"))
    assert [phase["max_length"] for phase in recipe["phases"]] == [16, 32]
    assert bertworks("adapt", "general/model", *arguments).returncode == 0  # it recognizes its finished run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["general", "--recipe", "short.toml"],
            "general is the folder of a run; give that of its model: general/model",
        ),
        (["domain.txt", "--recipe", "short.toml"], "domain.txt is a file"),
        (["general/model", "--recipe", "no-such"], "there is no recipe 'no-such'"),
    ],
)
def test_a_user_error_is_one_sentence_and_exit_code_2(bertworks: RunCommand, arguments: list[str], message: str):
    result = bertworks("adapt", *arguments, "--data", "domain-corpus", "--output", "refused")
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.startswith("bertworks: ")
    assert result.stderr.count("\n") == 1
    assert not Path("refused").exists()


def test_a_vocabulary_that_is_not_an_extension_is_refused_with_the_way_out(bertworks: RunCommand, folder: Path):
    (folder / "other.txt").write_text("\n".join([*TOKENS[:-1], "##x", "##s"]) + "\n", encoding="utf-8")
    assert (
        bertworks("prepare", "domain.txt", "--vocab", "other.txt", "--output", "other", "--workers", "1").returncode
        == 0
    )
    result = bertworks("adapt", "general/model", "--data", "other", "--output", "refused", "--recipe", "short.toml")
    assert result.returncode == 2
    assert "token '##s', which has id 23 in the model, has id 24 there" in result.stderr
    assert "bertworks vocab extend general/model TEXT --output VOCAB" in result.stderr
