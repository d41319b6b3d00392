"""Code blocks of the documentation: Markdown pages in, blocks with what they need out; and their commands, executed.

A block of bash or Python is executed in order with the others of its page, unless a comment before it says what it
needs that a test has not: <!-- needs: data -->.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CODE = ("bash", "console", "python")
PAGE_NEEDS = {"docs/results.md": "data"}  # a script writes these pages
NEEDS = ("data", "hardware", "install", "network", "server", "time")
_BLOCK = re.compile(
    r"^(?:<!-- needs: (?P<need>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE
)
# What a test changes in a command: it trains a tiny model for two steps.
_SHORT_RUN = (
    "--set batch_size=4 --set num_eval_examples=4 --set warmup_steps=1 --set 'phases=[{max_length=32, steps=2}]'"
)
_SHORTER = {
    "pretrain": f"--set model.size=tiny {_SHORT_RUN}",
    "adapt": _SHORT_RUN,
    "finetune": "--epochs 1 --batch-size 4",
}


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page, its first line, and what it needs: empty if a test executes it."""

    page: str
    line: int
    language: str
    code: str
    need: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return the paths of all pages."""
    paths = [
        ROOT / "README.md",
        ROOT / "README.zh.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    return [path.relative_to(ROOT).as_posix() for path in paths]


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            page,
            text[: match.start("language")].count("\n") + 1,
            match["language"],
            match["code"],
            match["need"] or PAGE_NEEDS.get(page, ""),
        )
        for match in _BLOCK.finditer(text)
    ]


def run_block(block: Block, namespace: dict[str, Any]) -> str:
    """Execute a block in the current folder; return what it prints. Python blocks of a page share a namespace."""
    if block.language == "python":
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.code, block.place, "exec"), namespace)
        return printed.getvalue()
    return "".join(run_line(line) for line in block.code.replace("\\\n", " ").splitlines() if line.strip())


def run_line(line: str) -> str:
    """Execute a line of a shell: a command of ours in this process, anything else in a shell. Return what it prints."""
    feed, _, command = line.rpartition(" | ") if line.startswith("echo ") else ("", "", line)
    words = shlex.split(command, comments=True)
    if words[:1] != ["bertworks"]:
        return subprocess.run(line, shell=True, check=True, capture_output=True, text=True).stdout
    with pytest.MonkeyPatch.context() as monkeypatch:
        if feed:
            text = io.BytesIO((" ".join(shlex.split(feed)[1:]) + "\n").encode())
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(text, encoding="utf-8"))
        printed = run_command(words[1:])
    assert printed.strip(), f"{line} printed nothing"
    return printed


def run_command(words: list[str]) -> str:
    """Run a command of ours with a new output folder; return what it prints."""
    from bertworks.cli.app import app

    if "--output" in words:
        output = Path(words[words.index("--output") + 1])
        shutil.rmtree(output, ignore_errors=True)
        output.unlink(missing_ok=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = app(words, prog_name="bertworks", standalone_mode=False)
    assert not status, f"bertworks {shlex.join(words)}: exit code {status}"
    return printed.getvalue()


def shorter(line: str) -> str:
    """Return a command of ours that trains for two steps instead of hours."""
    words = line.split(maxsplit=2)
    if words[:1] != ["bertworks"] or words[1] not in _SHORTER:
        return line
    line = re.sub(r"\s+#.*", "", line)
    line = re.sub(r" --budget \S+| --epochs \d+| --batch-size \d+", "", line)
    return f"{re.sub(r'--adapt-epochs [0-9]+', '--adapt-epochs 1', line)} {_SHORTER[words[1]]}"
