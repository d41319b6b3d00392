"""The command line as a user meets it: help, suggestions, exit codes, one sentence for every user error."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import exit_code
from typer.testing import CliRunner

from bertworks.cli.app import COMMANDS, app

TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "i",
    "like",
    "play",
    "##ing",
    "soc",
    "##cer",
    *"我喜欢踢足球。.",
]
TEXT = "I like playing. I like soccer. Playing is what I like.\n\n我喜欢踢足球。足球我喜欢。你也喜欢踢足球。\n"


def bertworks(*arguments: str, cwd: Path, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bertworks", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, **options)


def test_a_full_disk_under_the_output_is_one_sentence(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "bertworks", "tokenize", "i like", "--vocab", "vocab.txt"]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 2
    message = r"bertworks: no space left on the disk of the output, or of \S+; free some space .*\n"
    assert re.fullmatch(message, result.stderr)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def test_help_lists_every_command(folder):
    result = bertworks("--help", cwd=folder)
    assert result.returncode == 0
    for name in COMMANDS:
        assert f"  {name} " in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_without_types_of_python_and_without_torch(folder, name):
    result = bertworks(name, "--help", cwd=folder)
    assert result.returncode == 0
    assert "Usage: bertworks" in result.stdout
    assert not re.search("<[a-z]", result.stdout)  # <list[str]>, <int range>
    code = f"import sys; sys.argv = ['bertworks', '{name}', '--help']; from bertworks.cli import main\n"
    code += "try: main()\nexcept SystemExit: print('torch' in sys.modules, 'numpy' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "False False"


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["finetune", "classify", "--lr", "1e-4"], "did you mean --learning-rate?"),
        (["finetune", "classify", "--bs", "8"], "did you mean --batch-size?"),
        (["pretrain", "mini", "--out", "run"], "did you mean --output?"),
        (["finetune", "classify", "--max-seq-length", "64"], "did you mean --max-length?"),
        (["finetune", "classify", "--epoch", "2"], "did you mean --epochs?"),
        (["fitune"], "did you mean `bertworks finetune`?"),
        (["fine-tune"], "did you mean `bertworks finetune`?"),
        (["fill"], "did you mean `bertworks fill-mask`?"),
        (["tokenise"], "did you mean `bertworks tokenize`?"),
        (["pretrain", "mini", "--device", "gpu", "--data", "c", "--output", "r"], "choose one of: auto, cpu, cuda"),
        (["embed", "m", "f", "--output", "o", "--pooling", "average"], "choose one of: mean, cls, max"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_name(folder, arguments, suggestion):
    result = bertworks(*arguments, cwd=folder)
    assert result.returncode == 2
    assert suggestion in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_recipe_key_is_answered_with_the_nearest_key(folder):
    result = bertworks(
        "pretrain", "mini", "--data", "corpus", "--output", "run", "--set", "optimizer.beta_2=0.9", cwd=folder
    )
    assert result.returncode == 2
    assert "beta2" in result.stderr


def test_tokenize_prints_one_line_of_json(folder):
    result = bertworks(
        "tokenize", "I like playing soccer", "--pair", "我喜欢踢足球", "--vocab", "vocab.txt", "--json", cwd=folder
    )
    encoding = json.loads(result.stdout)
    assert list(encoding) == ["tokens", "input_ids", "position_ids", "token_type_ids", "attention_mask", "offsets"]
    assert encoding["tokens"][:8] == ["[CLS]", "i", "like", "play", "##ing", "soc", "##cer", "[SEP]"]
    assert encoding["input_ids"] == [2, 5, 6, 7, 8, 9, 10, 3, 11, 12, 13, 14, 15, 16, 3]
    assert encoding["position_ids"] == list(range(15))
    assert encoding["token_type_ids"] == [0] * 8 + [1] * 7
    assert encoding["attention_mask"] == [1] * 15
    assert encoding["offsets"][:3] == [None, [0, 1], [2, 6]]


def test_tokenize_prints_a_table_with_the_text_of_each_token(folder):
    result = bertworks("tokenize", "I like playing", "--vocab", "vocab.txt", cwd=folder)
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["1", "i", "5", "0", "I"] in rows
    assert ["4", "##ing", "8", "0", "ing"] in rows


def test_from_text_to_examples(folder):
    assert bertworks("prepare", "text.txt", "--vocab", "vocab.txt", "--output", "corpus", cwd=folder).returncode == 0
    result = bertworks("show", "corpus", "--count", "2", "--max-length", "32", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("[CLS]") == 2
    assert "→" in result.stdout
    assert "segment B" in result.stdout
    result = bertworks("show", "corpus", "--documents", cwd=folder)
    assert "I like soccer." in result.stdout
    result = bertworks("prepare", "--verify", "corpus", cwd=folder)
    assert "2 files, all hashes match" in result.stdout


def test_show_splits_a_text_into_sentences(folder):
    result = bertworks("show", "text.txt", cwd=folder)
    assert "2 I like soccer." in result.stdout
    assert "2 足球我喜欢。" in result.stdout


def test_show_describes_a_vocabulary(folder):
    result = bertworks("show", "vocab.txt", cwd=folder)
    assert "wordpiece, uncased, 19 tokens" in result.stdout
    assert "[MASK] = 4" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare", "missing.txt", "--vocab", "vocab.txt", "--output", "x"], "missing.txt does not exist"),
        (["prepare", "text.txt", "--vocab", "nowhere", "--output", "x"], "nowhere does not exist"),
        (["prepare", "text.txt"], "needs --vocab and --output"),
        (
            ["prepare", "text.txt", "--vocab", "vocab.txt", "--output", "x", "--weights", "1,2"],
            "2 weights for 1 sources",
        ),
        (
            ["prepare", "text.txt", "--vocab", "vocab.txt", "--output", "text.txt/x"],
            "choose another folder with --output",
        ),
        (["prepare", "text.txt", "--vocab", "vocab.txt", "--output", "text.txt"], "a part of that path is a file"),
        (["prepare", "text.txt", "--vocab", "vocab.txt", "--output", "x", "--held-out-ratio", "3"], "less than 1"),
        (["prepare", "text.txt", "--vocab", "vocab.txt", "--output", "x", "--max-repeats", "-1"], "max_repeats = -1"),
        (
            ["prepare", "text.txt", "--vocab", "vocab.txt", "--output", "x", "--min-characters", "-1"],
            "min_characters = -1",
        ),
        (["prepare", "--verify", "."], "it is not, or not yet, a prepared corpus"),
        (["show", "corpus"], "corpus does not exist"),
        (["tokenize", "x", "--vocab", "text.txt"], "text.txt"),
        (["vocab", "text.txt", "--output", "."], "already holds something"),
        (["doctor", "*.pdf"], "no file matches"),
    ],
)
def test_a_user_error_is_one_sentence_and_exit_code_2(folder, arguments, message):
    result = bertworks(*arguments, cwd=folder)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.startswith("bertworks: ")
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "--colour"],
        ["show", "corpus", "--count", "-1"],
        ["show", "corpus", "--epoch", "-1"],
        ["doctor", "text.txt", "--workers", "0"],
        ["prepare", "text.txt", "--vocab", "vocab.txt", "--output", "x", "--words", "magic"],
        ["vocab", "text.txt", "--kind", "magic", "--output", "v"],
        ["generate", "model", "a text", "--temperature", "nan"],
    ],
)
def test_an_unknown_option_or_a_number_out_of_range_exits_with_2(folder, arguments):
    result = bertworks(*arguments, cwd=folder)
    assert result.returncode == 2
    assert "Error: " in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_is_one_sentence_and_exit_code_130(folder):
    command = [sys.executable, "-m", "bertworks", "prepare", "-", "--vocab", "vocab.txt", "--output", "corpus"]
    # A test run that was started in the background ignores Ctrl-C, and so would its children.
    obey = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=folder, text=True, preexec_fn=obey, **pipes)
    while not (folder / "corpus" / ".work" / "plan.json").exists():  # then it waits for text that never comes
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(1)  # until it waits: Python drops an interrupt that arrives during a __del__, here of the regex library
    process.send_signal(signal.SIGINT)
    _, message = process.communicate()
    assert process.returncode == 130
    assert message == "bertworks: interrupted; run the same command to continue\n"


def test_ctrl_c_does_not_promise_to_continue_where_nothing_is_saved(monkeypatch: pytest.MonkeyPatch):
    def interrupted(path: Path, *, split_special_tokens: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bertworks.vocabulary.tokenizer.Tokenizer.load", interrupted)
    result = CliRunner().invoke(app, ["tokenize", "a text", "--vocab", "vocab.txt"])
    assert (result.exit_code, result.stderr) == (130, "bertworks: interrupted\n")


def test_a_package_that_bertworks_run_lacks_is_named(monkeypatch: pytest.MonkeyPatch, capsys):
    def no_torch(path: Path, *, split_special_tokens: bool) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("bertworks.vocabulary.tokenizer.Tokenizer.load", no_torch)
    assert exit_code(monkeypatch, "tokenize", "a text", "--vocab", "vocab.txt") == 2
    expected = "bertworks: this command needs the package 'torch'; install it with: pip install bertworks\n"
    assert capsys.readouterr().err == expected


def test_show_recognizes_a_released_vocabulary_by_its_suffix(folder):
    (folder / "vocab.txt").rename(folder / "bert-base-chinese-vocab.txt")
    assert "19 tokens" in bertworks("show", "bert-base-chinese-vocab.txt", cwd=folder).stdout


def test_a_second_vocabulary_is_reported_as_itself_and_the_text_needs_none(folder):
    (folder / "other.txt").write_text("\n".join([*TOKENS, "soccer", "playing"]) + "\n", encoding="utf-8")
    counts = []
    for vocab in ("vocab.txt", "other.txt", "vocab.txt"):
        result = bertworks("prepare", "text.txt", "--vocab", vocab, "--output", "corpus", "--json", cwd=folder)
        counts.append(json.loads(result.stdout)["tokens"])
    assert counts[0] == counts[2] == counts[1] + 3  # "playing" twice and "soccer" once are one token less each
    assert "I like soccer." in bertworks("show", "corpus", "--documents", cwd=folder).stdout


def test_a_closed_pipe_is_no_error(folder):
    command = f"{sys.executable} -m bertworks show vocab.txt --count 19 | head -n 1"
    result = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True)
    assert "Traceback" not in result.stderr
    assert "wordpiece" in result.stdout


def test_progress_off_a_terminal_is_plain_lines(folder):
    result = bertworks("prepare", "text.txt", "--vocab", "vocab.txt", "--output", "corpus", cwd=folder)
    assert result.stderr.startswith("reading: ")
    assert "\x1b" not in result.stderr
    assert "\r" not in result.stderr


def test_standard_input_is_a_source(folder):
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    result = bertworks(
        "prepare", "-", "--vocab", "vocab.txt", "--output", "corpus", cwd=folder, input=TEXT, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert "2  documents" in result.stdout


def test_vocab_extend_fills_unused_slots_first(folder):
    (folder / "slots.txt").write_text(
        "\n".join(["[unused0]", *TOKENS, *"bdefghjmnoqrtuvwxz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")])
        + "\n"
    )
    (folder / "domain.txt").write_text("The endoscope is here. " * 9 + "An endoscopy is planned. " * 7 + "\n")
    result = bertworks("vocab", "extend", "slots.txt", "domain.txt", "--add", "2", "--output", "new", cwd=folder)
    assert result.returncode == 0, result.stderr
    tokens = (folder / "new" / "vocab.txt").read_text().splitlines()
    assert tokens[0] == "endoscope"
    assert tokens[-1] == "endoscopy"


def test_names_in_help_are_those_of_the_tables_they_key():
    from bertworks import choices
    from bertworks.commands.compare.recipe import BUILTIN_RECIPES
    from bertworks.embeddings.pooling import POOLINGS
    from bertworks.embeddings.static_files import FORMATS
    from bertworks.embeddings.static_settings import KINDS as WORD_VECTOR_KINDS
    from bertworks.embeddings.static_words import CONTEXTS
    from bertworks.embeddings.strategies import STRATEGIES
    from bertworks.encoders.precision import PRECISIONS
    from bertworks.engines.runtimes import ENGINES
    from bertworks.exporters.export import TARGETS
    from bertworks.serving.request_log import FORMATTERS
    from bertworks.training.devices import DEVICES
    from bertworks.training.trackers import TRACKERS
    from bertworks.vocabulary.algorithms import KINDS

    assert choices.DEVICES == DEVICES
    assert tuple(PRECISIONS) == choices.PRECISIONS
    assert tuple(ENGINES) == choices.ENGINES
    assert tuple(TRACKERS) == choices.TRACKERS
    assert tuple(TARGETS) == choices.EXPORT_TARGETS
    assert tuple(FORMATTERS) == choices.LOG_FORMATS
    assert tuple(STRATEGIES) == choices.FEATURE_STRATEGIES
    assert tuple(POOLINGS) == choices.POOLINGS
    assert tuple(KINDS) == choices.VOCABULARY_KINDS
    assert tuple(WORD_VECTOR_KINDS) == choices.WORD_VECTOR_KINDS
    assert choices.COMPARE_RECIPES == BUILTIN_RECIPES
    assert tuple(FORMATS) == choices.WORD_VECTOR_FORMATS
    assert tuple(CONTEXTS) == choices.WORD_CONTEXTS


@pytest.mark.parametrize(
    "arguments",
    [
        ("tokenize", "a text", "--vocab", "n" * 300),
        ("fill-mask", "n" * 300, "a [MASK]"),
        ("predict", "n" * 300),
        ("vocab", "n" * 300, "--output", "out"),
        ("prepare", "text.txt", "--vocab", "n" * 300, "--output", "out"),
        ("pretrain", "n" * 300, "--data", "corpus", "--output", "out"),
        ("pretrain", "mini", "--data", "n" * 300, "--output", "out"),
        ("finetune", "classify", "--train", "n" * 300, "--model", "m", "--output", "out"),
        ("embed", "n" * 300, "text.txt", "--output", "out"),
        ("show", "n" * 300),
        ("serve", "n" * 300),
        ("doctor", "n" * 300),
        ("plan", "--data", "n" * 300),
        ("adapt", "n" * 300, "--data", "corpus", "--output", "out"),
        ("verify-resume", "n" * 300, "--data", "corpus"),
        ("compare", "n" * 300, "--output", "out"),
        ("evaluate", "n" * 300, "text.txt"),
        ("explain", "n" * 300, "a text"),
        ("generate", "n" * 300, "a text"),
        ("next", "n" * 300, "a text"),
        ("search", "n" * 300, "text.txt", "a text"),
        ("translate", "n" * 300, "text.txt"),
        ("export", "n" * 300, "--to", "onnx", "--output", "out"),
        ("package", "n" * 300, "--name", "en", "--version", "1", "--output", "out"),
        ("bundle", "n" * 300, "--output", "out"),
        ("bundle", "model", "--output", "n" * 300),
        ("verify", "n" * 300),
        ("vocab", "text.txt", "--output", "n" * 300),
        ("word-vectors", "train", "text.txt", "--output", "n" * 300),
        ("word-vectors", "nearest", "n" * 300, "cat"),
    ],
    ids=lambda arguments: " ".join(arguments).replace("n" * 300, "NAME"),
)
def test_a_name_of_300_characters_is_one_sentence(folder, arguments, monkeypatch, capsys):
    (folder / "text.txt").write_text("A text.\n")
    monkeypatch.chdir(folder)
    assert exit_code(monkeypatch, *arguments) == 2
    message = capsys.readouterr().err.strip()
    assert "Traceback" not in message
    assert message.startswith("bertworks: ")
    assert len(message.splitlines()) == 1
