"""Ctrl-C on a running command: a checkpoint is saved, the exit code is 130, and the same command continues."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_models import write_all
from small_run import prepare_corpus

RECIPE = """
batch_size = 8
learning_rate = 1e-3
warmup_steps = 3
save_steps = 100000
eval_steps = 100000
num_eval_examples = 8
[model]
size = "tiny"
hidden_size = 16
num_attention_heads = 2
max_position_embeddings = 32
[[phases]]
max_length = 16
steps = {steps}
"""


def interrupt_when(path: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Start a command, send SIGINT once the file `path` has a line, and return what the command printed."""
    # A test run that was started in the background ignores SIGINT, and so would its children.
    restore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    command = [sys.executable, "-m", "bertworks", *arguments]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=restore
    )
    while not (path.exists() and path.read_text().count("\n") > 3):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def test_pretrain_saves_a_checkpoint_and_exits_with_130(tmp_path: Path):
    prepare_corpus(tmp_path)
    (tmp_path / "long.toml").write_text(RECIPE.format(steps=1_000_000))
    arguments = ["pretrain", "long.toml", "--data", "corpus", "--output", "run"]
    result = interrupt_when(tmp_path / "run" / "metrics.jsonl", tmp_path, *arguments)
    assert result.returncode == 130, result.stderr
    assert "saved " in result.stdout
    assert "the same command" in result.stdout
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


@pytest.mark.usefixtures("one_thread")
def test_finetune_saves_a_checkpoint_and_exits_with_130(tmp_path: Path):
    folders = write_all(tmp_path / "models")
    rows = "".join(f"{text}\t{label}\n" for text, label in (("good", "yes"), ("bad", "no")) * 200)
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + rows)
    arguments = ["finetune", "classify", "--model", str(folders["pretrained"]), "--train", "train.tsv"]
    arguments += ["--epochs", "100000", "--output", "run"]
    result = interrupt_when(tmp_path / "run" / "metrics.jsonl", tmp_path, *arguments)
    assert result.returncode == 130, result.stderr
    assert "the same command" in result.stdout
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
