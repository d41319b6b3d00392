"""The command line as a person meets it: help, exit codes, one sentence for every mistake."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bertworks.cli.app import app

PIECES = [
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


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def test_help_lists_every_verb(folder):
    done = bertworks("--help", cwd=folder)
    assert done.returncode == 0
    for verb in ("doctor", "vocab", "tokenize", "prepare", "show"):
        assert f"  {verb} " in done.stdout


@pytest.mark.parametrize("verb", ["doctor", "vocab", "tokenize", "prepare", "show"])
def test_every_verb_has_help(folder, verb):
    done = bertworks(verb, "--help", cwd=folder)
    assert done.returncode == 0
    assert "Usage: bertworks" in done.stdout


def test_tokenize_prints_one_line_of_json(folder):
    done = bertworks(
        "tokenize", "I like playing soccer", "--pair", "我喜欢踢足球", "--vocab", "vocab.txt", "--json", cwd=folder
    )
    told = json.loads(done.stdout)
    assert list(told) == ["pieces", "ids", "positions", "segments"]
    assert told["pieces"][:8] == ["[CLS]", "i", "like", "play", "##ing", "soc", "##cer", "[SEP]"]
    assert told["ids"] == [2, 5, 6, 7, 8, 9, 10, 3, 11, 12, 13, 14, 15, 16, 3]
    assert told["positions"] == list(range(15))
    assert told["segments"] == [0] * 8 + [1] * 7


def test_tokenize_prints_a_table_with_the_text_of_each_piece(folder):
    done = bertworks("tokenize", "I like playing", "--vocab", "vocab.txt", cwd=folder)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["1", "i", "5", "0", "I"] in rows
    assert ["4", "##ing", "8", "0", "ing"] in rows


def test_the_road_from_text_to_examples(folder):
    assert bertworks("prepare", "text.txt", "--vocab", "vocab.txt", "--out", "corpus", cwd=folder).returncode == 0
    done = bertworks("show", "corpus", "--count", "2", "--length", "32", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[CLS]") == 2
    assert "→" in done.stdout
    assert "the second" in done.stdout
    done = bertworks("show", "corpus", "--documents", cwd=folder)
    assert "I like soccer." in done.stdout
    done = bertworks("prepare", "--verify", "corpus", cwd=folder)
    assert "2 files, all as they were written" in done.stdout


def test_show_splits_a_text_into_sentences(folder):
    done = bertworks("show", "text.txt", cwd=folder)
    assert "2 I like soccer." in done.stdout
    assert "2 足球我喜欢。" in done.stdout


def test_show_describes_a_vocabulary(folder):
    done = bertworks("show", "vocab.txt", cwd=folder)
    assert "wordpiece, uncased, 19 pieces" in done.stdout
    assert "[MASK] = 4" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prepare", "missing.txt", "--vocab", "vocab.txt", "--out", "x"], "missing.txt does not exist"),
        (["prepare", "text.txt", "--vocab", "nowhere", "--out", "x"], "nowhere does not exist"),
        (["prepare", "text.txt"], "needs --vocab and --out"),
        (["prepare", "text.txt", "--vocab", "vocab.txt", "--out", "x", "--weights", "1,2"], "2 weights for 1 sources"),
        (["prepare", "text.txt", "--vocab", "vocab.txt", "--out", "x", "--words", "magic"], "no word rule 'magic'"),
        (["prepare", "text.txt", "--vocab", "vocab.txt", "--out", "text.txt/x"], "choose another folder with --out"),
        (["prepare", "text.txt", "--vocab", "vocab.txt", "--out", "text.txt"], "already holds something else"),
        (["prepare", "text.txt", "--vocab", "vocab.txt", "--out", "x", "--held-out-rate", "3"], "less than 1"),
        (["prepare", "text.txt", "--vocab", "vocab.txt", "--out", "x", "--max-repeats", "-1"], "max_repeats = -1"),
        (
            ["prepare", "text.txt", "--vocab", "vocab.txt", "--out", "x", "--min-characters", "-1"],
            "min_characters = -1",
        ),
        (["prepare", "--verify", "."], "it is not, or not yet, a prepared corpus"),
        (["show", "corpus"], "corpus does not exist"),
        (["tokenize", "x", "--vocab", "text.txt"], "text.txt"),
        (["vocab", "text.txt", "--kind", "magic", "--out", "v"], "'magic' is unknown"),
        (["vocab", "text.txt", "--out", "."], "already holds something"),
        (["doctor", "*.pdf"], "no file matches"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(folder, arguments, said):
    done = bertworks(*arguments, cwd=folder)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.startswith("bertworks: ")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "--colour"],
        ["show", "corpus", "--count", "-1"],
        ["show", "corpus", "--epoch", "-1"],
        ["doctor", "text.txt", "--workers", "0"],
    ],
)
def test_an_unknown_option_or_a_number_out_of_range_exits_with_2(folder, arguments):
    done = bertworks(*arguments, cwd=folder)
    assert done.returncode == 2
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_is_one_sentence_and_exit_code_130(folder):
    command = [sys.executable, "-m", "bertworks", "prepare", "-", "--vocab", "vocab.txt", "--out", "corpus"]
    # A test run that was started in the background ignores Ctrl-C, and so would its children.
    obey = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=folder, text=True, preexec_fn=obey, **pipes)
    while not (folder / "corpus" / ".work" / "plan.json").exists():  # then it waits for text that never comes
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert said == "bertworks: stopped; the same command takes up what was finished\n"


def test_ctrl_c_promises_nothing_where_nothing_is_kept(monkeypatch: pytest.MonkeyPatch):
    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bertworks.vocabulary.tokenizer.Tokenizer.load", interrupted)
    done = CliRunner().invoke(app, ["tokenize", "a text", "--vocab", "vocab.txt"])
    assert (done.exit_code, done.stderr) == (130, "bertworks: stopped\n")


def test_show_knows_a_released_vocabulary_by_the_end_of_its_name(folder):
    (folder / "vocab.txt").rename(folder / "bert-base-chinese-vocab.txt")
    assert "19 pieces" in bertworks("show", "bert-base-chinese-vocab.txt", cwd=folder).stdout


def test_a_second_vocabulary_is_reported_as_itself_and_the_text_needs_none(folder):
    (folder / "other.txt").write_text("\n".join([*PIECES, "soccer", "playing"]) + "\n", encoding="utf-8")
    told = []
    for vocab in ("vocab.txt", "other.txt", "vocab.txt"):
        done = bertworks("prepare", "text.txt", "--vocab", vocab, "--out", "corpus", "--json", cwd=folder)
        told.append(json.loads(done.stdout)["pieces"])
    assert told[0] == told[2] == told[1] + 3  # "playing" twice and "soccer" once are one piece less each
    assert "I like soccer." in bertworks("show", "corpus", "--documents", cwd=folder).stdout


def test_a_reader_that_goes_away_is_no_error(folder):
    command = f"{sys.executable} -m bertworks show vocab.txt --count 19 | head -n 1"
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert "wordpiece" in done.stdout


def test_progress_off_a_terminal_is_plain_lines(folder):
    done = bertworks("prepare", "text.txt", "--vocab", "vocab.txt", "--out", "corpus", cwd=folder)
    assert done.stderr.startswith("reading: ")
    assert "\x1b" not in done.stderr
    assert "\r" not in done.stderr


def test_standard_input_is_a_source(folder):
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = bertworks("prepare", "-", "--vocab", "vocab.txt", "--out", "corpus", cwd=folder, input=TEXT, env=environment)
    assert done.returncode == 0, done.stderr
    assert "2  documents" in done.stdout


def test_vocab_extend_fills_unused_slots_first(folder):
    (folder / "slots.txt").write_text(
        "\n".join(["[unused0]", *PIECES, *"bdefghjmnoqrtuvwxz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")])
        + "\n"
    )
    (folder / "domain.txt").write_text("The endoscope is here. " * 9 + "An endoscopy is planned. " * 7 + "\n")
    done = bertworks("vocab", "extend", "slots.txt", "domain.txt", "--add", "2", "--out", "new", cwd=folder)
    assert done.returncode == 0, done.stderr
    pieces = (folder / "new" / "vocab.txt").read_text().splitlines()
    assert pieces[0] == "endoscope"
    assert pieces[-1] == "endoscopy"
