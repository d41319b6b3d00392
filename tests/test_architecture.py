"""The architecture: layers of packages, import directions, what `import bertworks` costs, and the public names."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import bertworks

SOURCE = Path(bertworks.__file__).parent

# The packages and top-level modules, in layers: each imports only itself and those above it.
LAYERS = [
    "errors",
    "arguments",
    "reading",
    "protobuf",
    "disk",
    "folder_lock",
    "allocator",
    "choices",
    "messages",
    "settings",
    "records",
    "progress",
    "display",
    "packages",
    "parallel",
    "integrity",
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
    "model",
    "live_progress",
    "folder_info",
    "api",
    "estimators",
    "cli",
    "__main__",
]
TORCH_FREE = (
    "errors",
    "arguments",
    "reading",
    "protobuf",
    "disk",
    "folder_lock",
    "allocator",
    "choices",
    "messages",
    "settings",
    "progress",
    "packages",
    "integrity",
    "text",
    "vocabulary",
    "corpus",
    "sampling",
)
TORCH_FREE_EXCEPTION = SOURCE / "sampling" / "batch.py"


def source_files() -> list[Path]:
    files = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]
    assert files
    return files


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import; write the full name"
            modules.add(node.module or "")
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def imported_packages(path: Path) -> set[str]:
    """Return the packages of bertworks that a file imports."""
    parts = [module.split(".") for module in imported_modules(path)]
    return {part[1] for part in parts if part[0] == "bertworks" and len(part) > 1} & set(LAYERS)


def dataclass_decorator(node: ast.ClassDef) -> ast.expr | None:
    for decorator in node.decorator_list:
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(function, ast.Name) and function.id == "dataclass":
            return decorator
    return None


def is_keyword_only(call: ast.expr | None) -> bool:
    return isinstance(call, ast.Call) and any(keyword.arg == "kw_only" for keyword in call.keywords)


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_every_package_has_a_layer():
    assert {package_of(path) for path in source_files()} <= set(LAYERS)


def test_packages_import_only_from_layers_above():
    wrong = []
    for path in source_files():
        allowed = LAYERS[: LAYERS.index(package_of(path)) + 1]
        wrong += [f"{path.relative_to(SOURCE)} imports {name}" for name in imported_packages(path) - set(allowed)]
    assert wrong == []


def test_training_knows_neither_tasks_nor_reports():
    imported = {name for path in source_files() if package_of(path) == "training" for name in imported_packages(path)}
    assert not imported & {"tasks", "reports"}


def test_serving_does_not_load_training():
    code = "import bertworks.serving.app, sys; print([name for name in sys.modules if name.startswith('{}')])"
    assert run_python(code.format("bertworks.training")) == "[]"


def test_neither_serving_nor_fine_tuning_loads_scikit_learn_before_a_baseline_is_fitted():
    code = "import {}, sys; print({{'sklearn', 'scipy'}} & set(sys.modules))"
    for module in ("bertworks.serving.app", "bertworks.commands.finetune.run"):
        assert run_python(code.format(module)) == "set()"


def test_text_vocabulary_corpus_and_sampling_do_not_import_torch():
    wrong = [
        str(path.relative_to(SOURCE))
        for path in source_files()
        if package_of(path) in TORCH_FREE
        and path != TORCH_FREE_EXCEPTION
        and any(module.split(".")[0] == "torch" for module in imported_modules(path))
    ]
    assert wrong == []


def test_only_the_command_line_prints():
    wrong = [
        str(path.relative_to(SOURCE))
        for path in source_files()
        if package_of(path) != "cli"
        and any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            for node in ast.walk(parse(path))
        )
    ]
    assert wrong == []


def test_importing_bertworks_imports_nothing_heavy():
    code = "import bertworks, sys; print(sorted({'torch', 'numpy', 'tokenizers', 'rich'} & set(sys.modules)))"
    assert run_python(code) == "[]"


def test_preparing_text_never_imports_torch():
    code = "import bertworks.cli.prepare, bertworks.commands.vocab, sys; print('torch' in sys.modules)"
    assert run_python(code) == "False"


def test_public_names_are_these_and_each_can_be_imported():
    assert bertworks.__all__ == [
        "BertClassifier",
        "BertRegressor",
        "BertTransformer",
        "BertworksError",
        "Document",
        "Encoding",
        "FolderError",
        "InputError",
        "MissingDependencyError",
        "Model",
        "SettingsError",
        "Tokenizer",
        "adapt",
        "compare",
        "encode",
        "evaluate",
        "export",
        "finetune",
        "load",
        "predict",
        "prepare",
        "pretrain",
        "serve",
        "train_vocabulary",
    ]
    for name in bertworks.__all__:
        assert getattr(bertworks, name).__name__ == name


def test_no_package_has_the_name_of_a_public_function():
    # Importing the package `bertworks.export` would replace the function `bertworks.export`.
    assert not {package_of(path) for path in source_files()} & set(bertworks.__all__)


def test_an_unknown_public_name_is_refused_with_the_known_ones():
    with pytest.raises(AttributeError, match="Tokenizer"):
        bertworks.Tokeniser  # noqa: B018


def test_no_class_name_is_used_twice():
    locations = defaultdict(list)
    for path in source_files():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                locations[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: files for name, files in locations.items() if len(files) > 1} == {}


def test_dataclasses_of_more_than_four_fields_are_keyword_only():
    positional = set()
    for path in source_files():
        for node in ast.walk(parse(path)):
            decorator = dataclass_decorator(node) if isinstance(node, ast.ClassDef) else None
            if decorator is None or is_keyword_only(decorator):
                continue
            assert isinstance(node, ast.ClassDef)
            fields = [part for part in node.body if isinstance(part, ast.AnnAssign) and not is_keyword_only(part.value)]
            if len(fields) > 4:
                positional.add(node.name)
    assert positional == set(), "add kw_only=True"


def test_every_module_has_a_docstring():
    undocumented = [str(path.relative_to(SOURCE)) for path in source_files() if not ast.get_docstring(parse(path))]
    assert undocumented == []
