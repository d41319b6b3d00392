"""`bertworks adapt` from end to end: a tiny model, a domain with words of its own, and the model that knows them."""

import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers

from bertworks.cli import main
from bertworks.models.folder import read_folder

WORDS = "river stone cloud garden window letter winter bread silver morning road engine".split()
DOMAIN = "cardiogram cardio cars".split()  # three, two and two pieces
# The id of the free slot is 5, that of the last piece 23.
PIECES = [
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
batch = 8
warmup = 1
evaluate_examples = 8

[[phases]]
length = 16
steps = 3
"""
MODEL = """
[model]
size = "tiny"
width = 16
num_heads = 2
positions = 32
"""
# A rate so small that no weight moves: the adapted model is what it was before the first step.
STANDING = ["--rate", "1e-30"]
Run = Callable[..., "Done"]


@dataclass(frozen=True)
class Done:
    returncode: object
    stdout: str
    stderr: str


@pytest.fixture
def bertworks(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process, in the folder: starting torch anew takes seconds."""
    monkeypatch.chdir(folder)

    def run(*arguments: str) -> Done:
        return Done(leaving(monkeypatch, arguments), *capsys.readouterr())

    return run


def leaving(patch: pytest.MonkeyPatch, arguments: tuple[str, ...] | list[str]) -> object:
    patch.setattr(sys, "argv", ["bertworks", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code


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
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    (folder / "general.txt").write_text(written_text(WORDS, 5), encoding="utf-8")
    (folder / "domain.txt").write_text(written_text([*WORDS, *DOMAIN], 6), encoding="utf-8")
    (folder / "short.toml").write_text(RECIPE, encoding="utf-8")
    (folder / "small.toml").write_text(RECIPE + MODEL, encoding="utf-8")
    road = [
        "prepare general.txt --vocab vocab.txt --out general-corpus --workers 1",
        "pretrain small.toml --data general-corpus --out general",
        "vocab extend general/model domain.txt --out domain-vocab --workers 1",
        "prepare domain.txt --vocab domain-vocab --out domain-corpus --workers 1",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in road:
            assert leaving(patch, command.split()) == 0, command
    return folder


@pytest.mark.usefixtures("one_thread")
def test_a_model_is_adapted_to_a_domain_and_loads_in_transformers(bertworks: Run, folder: Path):
    done = bertworks("adapt", "general/model", "--data", "domain-corpus", "--out", "run", "--recipe", "short.toml")
    assert done.returncode == 0, done.stderr
    assert "3 new pieces" in done.stdout
    assert re.search(r"'cardiogram'.*mean of car ##dio ##gram", done.stdout)
    assert "held out, step 3: loss" in done.stdout
    model = transformers.BertForPreTraining.from_pretrained(folder / "run" / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "run" / "model")
    assert model.config.vocab_size == len(tokenizer) == len(PIECES) + 2  # the third word took the free slot
    assert tokenizer.tokenize("The cardiogram, cars and cardio")[:2] == ["the", "cardiogram"]
    assert set(DOMAIN) <= set(tokenizer.get_vocab())
    before = read_folder(folder / "general" / "model").tensors
    assert not torch.equal(read_folder(folder / "run" / "model").tensors[TABLE][: len(PIECES)], before[TABLE])


@pytest.mark.usefixtures("one_thread")
def test_before_the_first_step_old_rows_are_kept_and_new_ones_are_means(bertworks: Run, folder: Path):
    arguments = ["--data", "domain-corpus", "--out", "standing", "--recipe", "short.toml", *STANDING]
    done = bertworks("adapt", "general/model", *arguments)
    assert done.returncode == 0, done.stderr
    old, new = read_folder(folder / "general" / "model"), read_folder(folder / "standing" / "model")
    kept = [number for number in range(len(PIECES)) if PIECES[number] != "[unused0]"]
    for name in (TABLE, BIAS):
        assert torch.equal(new.tensors[name][kept], old.tensors[name][kept])
        for word, split in (("cardiogram", ["car", "##dio", "##gram"]), ("cars", ["car", "##s"])):
            mean = old.tensors[name][[PIECES.index(piece) for piece in split]].mean(0)
            assert torch.equal(new.tensors[name][new.tokenizer.token_to_id(word)], mean)
    others = [name for name in old.tensors if name not in (TABLE, BIAS)]
    assert [name for name in others if not torch.equal(new.tensors[name], old.tensors[name])] == []


@pytest.mark.usefixtures("one_thread")
def test_the_model_s_own_vocabulary_adds_nothing(bertworks: Run, folder: Path):
    arguments = ["--data", "general-corpus", "--out", "same", "--recipe", "short.toml", *STANDING]
    done = bertworks("adapt", "general/model", *arguments)
    assert done.returncode == 0, done.stderr
    assert "new pieces" not in done.stdout
    old, new = read_folder(folder / "general" / "model"), read_folder(folder / "same" / "model")
    assert [name for name in old.tensors if not torch.equal(new.tensors[name], old.tensors[name])] == []


@pytest.mark.usefixtures("one_thread")
def test_heads_that_the_model_lacks_are_drawn_and_told(bertworks: Run, folder: Path):
    bare = transformers.BertModel.from_pretrained(folder / "general" / "model", add_pooling_layer=False)
    bare.save_pretrained(folder / "bare")
    transformers.AutoTokenizer.from_pretrained(folder / "general" / "model").save_pretrained(folder / "bare")
    arguments = ["--data", "domain-corpus", "--out", "headless", "--recipe", "short.toml"]
    done = bertworks("adapt", "bare", *arguments)
    assert done.returncode == 0, done.stderr
    told = next(line for line in done.stdout.splitlines() if "cls.predictions.transform.dense.weight" in line)
    assert "bert.pooler.dense.weight" in told
    assert "cls.seq_relationship.weight" in told
    assert TABLE not in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["general", "--recipe", "short.toml"], "general holds no weights"),
        (["domain.txt", "--recipe", "short.toml"], "domain.txt is a file"),
        (["general/model"], "512 places, but general/model has only 32 positions"),
        (["general/model", "--recipe", "no-such"], "there is no recipe 'no-such'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(bertworks: Run, arguments: list[str], said: str):
    done = bertworks("adapt", *arguments, "--data", "domain-corpus", "--out", "refused")
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.startswith("bertworks: ")
    assert done.stderr.count("\n") == 1
    assert not Path("refused").exists()


def test_a_vocabulary_that_is_not_an_extension_is_refused_with_the_way_out(bertworks: Run, folder: Path):
    (folder / "other.txt").write_text("\n".join([*PIECES[:-1], "##x", "##s"]) + "\n", encoding="utf-8")
    assert (
        bertworks("prepare", "domain.txt", "--vocab", "other.txt", "--out", "other", "--workers", "1").returncode == 0
    )
    done = bertworks("adapt", "general/model", "--data", "other", "--out", "refused", "--recipe", "short.toml")
    assert done.returncode == 2
    assert "piece '##s', which has id 23 in the model, has id 24 there" in done.stderr
    assert "bertworks vocab extend general/model TEXT --out VOCAB" in done.stderr
