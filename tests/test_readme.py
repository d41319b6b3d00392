"""The READMEs' commands run in order on small texts, and their Python code prints what they show."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import blocks, run_block, run_line

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
    return [block.code for block in blocks(readme) if block.language == language and not block.need]


def commands(readme: str) -> list[str]:
    return [line for code in code_blocks(readme, "bash") for line in code.splitlines() if line.strip()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    for name, text in NOTES.items():
        (tmp_path / "notes" / name).write_text(text, encoding="utf-8")
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text(LABELLED)
    (tmp_path / "new.txt").write_text("A prize of bread\nSee you now\n")
    return tmp_path


def test_the_commands_of_the_readme_run_in_order(folder: Path, monkeypatch, one_thread):
    monkeypatch.chdir(folder)
    for line in commands("README.md"):
        # The one change: a test does not train for half an hour.
        run_line(line.replace("--budget 30m", "--budget 1s"))
    assert (folder / "mail-onnx" / "certificate.json").exists()
    assert (folder / "bundle" / "bundle.json").exists()


def test_the_installed_command_runs(folder: Path):
    """The others run in this process, since each process imports torch for seconds."""
    command = [str(Path(sys.executable).parent / "bertworks"), "doctor", "notes/"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert "documents" in result.stdout


@pytest.mark.parametrize("readme", ["README.md", "README.zh.md"])
def test_the_python_code_of_the_readme_prints_what_it_shows(readme, tmp_path: Path, monkeypatch, one_thread):
    folder = shutil.copytree(ROOT / "docs" / "tutorials" / "data", tmp_path / "data")
    monkeypatch.chdir(folder)
    (block,) = [block for block in blocks(readme) if block.language == "python"]
    assert run_block(block, {}).splitlines() == re.findall(r"^# (.*)$", block.code, re.MULTILINE)
    if readme == "README.zh.md":  # its commands use what the code has written
        for line in commands(readme):
            run_line(line)


@pytest.mark.parametrize("readme", ["README.md", "README.zh.md"])
def test_every_link_of_the_readme_exists(readme):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / readme).read_text(encoding="utf-8"))
    assert links
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []


@pytest.mark.parametrize("readme", ["README.md", "README.zh.md"])
def test_every_make_target_of_the_readme_exists(readme):
    targets = re.findall(r"\bmake (\w+)", (ROOT / readme).read_text(encoding="utf-8"))
    assert set(targets) == {"demo", "test", "check", "docs", "soak"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
