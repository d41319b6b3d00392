"""The house itself: which room may import which, what `import bertworks` costs, and the public names."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bertworks

SOURCE = Path(bertworks.__file__).parent

# The rooms in the order of the data. A room imports only itself and rooms above it.
ROOMS = [
    "errors",
    "disk",
    "allocator",
    "settings",
    "records",
    "progress",
    "parallel",
    "text",
    "vocabulary",
    "corpus",
    "sampling",
    "encoders",
    "models",
    "objectives",
    "engines",
    "embeddings",
    "training",
    "datasets",
    "metrics",
    "tasks",
    "inference",
    "reports",
    "commands",
    "exporters",
    "serving",
    "cli",
    "__main__",
]
# Rooms, and the one file, that may import torch.
WITHOUT_TORCH = (
    "errors",
    "disk",
    "allocator",
    "settings",
    "progress",
    "text",
    "vocabulary",
    "corpus",
    "sampling",
)
THE_ONE_WITH_TORCH = SOURCE / "sampling" / "batch.py"


def modules_imported_by(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively; write the whole name"
            found.add(node.module or "")
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return found


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def source_files() -> list[Path]:
    files = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]
    assert files
    return files


def test_every_room_is_in_the_plan_of_the_house():
    assert {room_of(path) for path in source_files()} <= set(ROOMS)


def test_rooms_import_only_rooms_above_them():
    wrong = []
    for path in source_files():
        allowed = ROOMS[: ROOMS.index(room_of(path)) + 1]
        for module in modules_imported_by(path):
            parts = module.split(".")
            if parts[0] == "bertworks" and len(parts) > 1 and parts[1] in ROOMS and parts[1] not in allowed:
                wrong.append(f"{path.relative_to(SOURCE)} imports {module}")
    assert wrong == []


def test_text_vocabulary_and_examples_do_without_torch():
    wrong = [
        str(path.relative_to(SOURCE))
        for path in source_files()
        if room_of(path) in WITHOUT_TORCH
        and path != THE_ONE_WITH_TORCH
        and any(module.split(".")[0] == "torch" for module in modules_imported_by(path))
    ]
    assert wrong == []


def test_only_the_command_line_prints():
    wrong = [
        str(path.relative_to(SOURCE))
        for path in source_files()
        if room_of(path) != "cli"
        and any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    ]
    assert wrong == []


def test_importing_bertworks_imports_nothing_heavy():
    code = "import bertworks, sys; print(sorted({'torch', 'numpy', 'tokenizers', 'rich'} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_preparing_text_never_imports_torch():
    code = "import bertworks.cli.prepare, bertworks.commands.vocab, sys; print('torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "False"


def test_public_names_are_these_and_each_can_be_fetched():
    assert bertworks.__all__ == [
        "BertworksError",
        "Document",
        "Encoding",
        "FinetuneRequest",
        "Model",
        "Tokenizer",
        "Tuning",
        "finetune",
        "load",
    ]
    for name in bertworks.__all__:
        assert getattr(bertworks, name).__name__ == name


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(AttributeError, match="Tokenizer"):
        bertworks.Tokeniser  # noqa: B018


def test_every_module_says_first_what_it_is():
    wordless = [
        str(path.relative_to(SOURCE))
        for path in source_files()
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert wordless == []
