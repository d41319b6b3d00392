"""The README's commands and Python code run in order on a small folder of text; both languages show the same ones."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

NOTES = {
    "river.txt": "He sat by the river all morning. The water was high after the rain. Nobody came past the river.\n"
    "In the afternoon the sun came out. He put his letters away and walked home.\n\n"
    "The mill had stood empty for years. Then a family from the coast bought it. They mended the wheel first.\n",
    "market.md": "# The market\n\nOn Saturdays the square fills with carts. People come from three valleys. "
    "Bread is sold out by nine o'clock.\n\nThe baker starts at two in the morning. She likes the quiet.\n",
    "足球.txt": "我喜欢踢足球。每个星期六下午，我们都去学校的操场。天气不好的时候也去。\n\n"
    "城里新开了一家书店。店主是一位退休的老师。他认识每一本书。\n",
}

MAIL = ("A free prize waits for you", "See you at the mill on Saturday", "Win money now", "The bread was good")
LABELLED = "text\tlabel\n" + "".join(f"{text}\t{('spam', 'ham')[index % 2]}\n" for index, text in enumerate(MAIL))


def code_blocks(readme: str, language: str) -> list[str]:
    text = (ROOT / readme).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(readme: str) -> list[str]:
    return [line for block in code_blocks(readme, "bash") for line in block.splitlines() if line.strip()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    for name, text in NOTES.items():
        (tmp_path / "notes" / name).write_text(text, encoding="utf-8")
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text(LABELLED)
    (tmp_path / "new.txt").write_text("A prize of bread\nSee you now\n")
    return tmp_path


def test_the_commands_of_the_readme_run_in_order(folder: Path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for line in commands("README.md"):
        # The one change: a test does not train for half an hour.
        words = shlex.split(line.replace("--budget 30m", "--budget 3s"), comments=True)
        assert words[0] == "bertworks"
        result = subprocess.run(words, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)
        assert result.returncode == 0, f"{line}\n{result.stderr}"
        assert result.stdout.strip(), f"{line} printed nothing"


def test_the_python_code_of_the_readme_prints_what_it_shows(folder: Path):
    (code,) = code_blocks("README.md", "python")
    expected = re.findall(r"^# (.*)$", code, re.MULTILINE)
    code = code.replace('budget="30m"', 'budget="3s"')
    result = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    printed = result.stdout.splitlines()
    assert len(printed) == len(expected)
    assert printed[0] == expected[0]
    assert printed[1].startswith("He sat by the")  # which word follows depends on half an hour of training
    assert printed[2] in ("spam", "ham")
    assert printed[3] == expected[3]


def test_both_readmes_show_the_same_commands():
    def bare(lines: list[str]) -> list[list[str]]:
        return [shlex.split(line, comments=True) for line in lines]

    assert bare(commands("README.zh.md")) == bare(commands("README.md"))
    assert code_blocks("README.md", "python") == code_blocks("README.zh.md", "python")


@pytest.mark.parametrize("readme", ["README.md", "README.zh.md"])
def test_every_link_of_the_readme_exists(readme):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / readme).read_text(encoding="utf-8"))
    assert links
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []


@pytest.mark.parametrize("readme", ["README.md", "README.zh.md"])
def test_every_make_target_of_the_readme_exists(readme):
    targets = re.findall(r"\bmake (\w+)", (ROOT / readme).read_text(encoding="utf-8"))
    assert set(targets) == {"demo", "test", "check", "soak"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
