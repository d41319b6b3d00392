"""Damaged and changed models and corpora on the command line: one sentence, exit code 2, and `bertworks verify`."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import CommandResult, RunCommand
from damage import flip_bit, forget_hashes, positions_in, zero_bytes
from safetensors.torch import load_file, save_file
from small_models import TASKS, write_finetuned, write_pretrained
from small_run import RECIPE, prepare_corpus

from bertworks.exporters.export import ExportRequest, export
from bertworks.settings import to_toml

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fine-tuned model, its exports, a pretrained model and a corpus."""
    home = tmp_path_factory.mktemp("verify")
    model = write_finetuned(home / "model", TASKS["classify"], metadata={"temperature": 1.5})
    write_pretrained(home / "pretrained")
    for target in ("onnx", "openvino", "int8"):
        export(ExportRequest(model=str(model), target=target, output=home / target, cosine=0.5))
    prepare_corpus(home)
    (home / "texts.txt").write_text("a good film\nit was dull\n")
    return home


@pytest.fixture
def copy(home: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies one of the folders."""
    return lambda name: Path(shutil.copytree(home / name, tmp_path / name))


def assert_refused(result: CommandResult, *words: str) -> None:
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("bertworks: ")
    for word in words:
        assert word in line


@pytest.fixture
def predict(run_command: RunCommand, home: Path) -> Callable[[Path], CommandResult]:
    return lambda model: run_command("predict", str(model), str(home / "texts.txt"))


@pytest.mark.parametrize(
    ("folder", "name", "count"),
    [
        ("model", "model.safetensors", 20),
        ("onnx", "model.onnx", 10),
        ("int8", "model.onnx", 5),
        ("openvino", "openvino_model.bin", 5),
        ("openvino", "openvino_model.xml", 5),
    ],
)
def test_a_bit_flipped_anywhere_in_the_weights_is_noticed(
    copy: Callable[[str], Path], predict: Callable[[Path], CommandResult], folder: str, name: str, count: int
):
    model = copy(folder)
    assert predict(model).returncode == 0
    for position in positions_in(model / name, count):
        flip_bit(model / name, position)
        assert_refused(predict(model), f"{model / name} is damaged")
        flip_bit(model / name, position)
    assert predict(model).returncode == 0


def swap_vocabulary_lines(model: Path) -> str:
    lines = (model / "vocab.txt").read_text(encoding="utf-8").splitlines()
    lines[10], lines[11] = lines[11], lines[10]
    (model / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return "vocab.txt"


def swap_tokens(model: Path) -> str:
    path = model / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"good"', '"swap"').replace('"bad"', '"good"').replace('"swap"', '"bad"'), "utf-8")
    return "tokenizer.json"


def change_temperature(model: Path) -> str:
    path = model / "bertworks.json"
    assert '"temperature": 1.5' in path.read_text()
    path.write_text(path.read_text().replace('"temperature": 1.5', '"temperature": 0.5'))
    return "bertworks.json"


def change_layer_count(model: Path) -> str:
    path = model / "config.json"
    path.write_text(path.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 1'))
    return "config.json"


@pytest.mark.parametrize("folder", ["model", "onnx"])
@pytest.mark.parametrize("change", [swap_vocabulary_lines, swap_tokens, change_temperature, change_layer_count])
def test_a_change_by_hand_is_noticed_and_its_file_named(
    copy: Callable[[str], Path],
    predict: Callable[[Path], CommandResult],
    folder: str,
    change: Callable[[Path], str],
):
    model = copy(folder)
    name = change(model)
    assert_refused(predict(model), f"{model}: {name} was changed", f"`bertworks verify --accept {model}`")


def test_an_accepted_change_is_used(
    run_command: RunCommand, copy: Callable[[str], Path], predict: Callable[[Path], CommandResult]
):
    model = copy("model")
    before = predict(model).stdout
    path = model / "config.json"
    path.write_text(path.read_text().replace('"good"', '"splendid"'))
    assert_refused(predict(model), "config.json was changed")
    result = run_command("verify", str(model), "--accept")
    assert result.returncode == 0
    assert result.stdout == f"accepted: config.json\n{model}: 6 files, all hashes match\n"
    assert predict(model).stdout == before.replace('"good"', '"splendid"') != before


def test_damaged_weights_are_not_accepted(run_command: RunCommand, copy: Callable[[str], Path]):
    model = copy("model")
    flip_bit(model / "model.safetensors", -1)
    for arguments in (("--accept",), ()):
        assert_refused(run_command("verify", str(model), *arguments), "model.safetensors is damaged")


@pytest.mark.parametrize(
    "command",
    [
        ("fill-mask", "{model}", "a [MASK] film"),
        ("embed", "{model}", "{home}/texts.txt", "--output", "{tmp_path}/v.npy"),
        ("tokenize", "a film", "--vocab", "{model}"),
        ("prepare", "{home}/text.txt", "--vocab", "{model}", "--output", "{tmp_path}/corpus"),
        ("export", "{model}", "--to", "onnx", "--output", "{tmp_path}/onnx"),
        ("bundle", "{model}", "--output", "{tmp_path}/bundle"),
        ("serve", "{model}"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_that_reads_a_model_notices_a_change(
    run_command: RunCommand, copy: Callable[[str], Path], home: Path, tmp_path: Path, command: tuple[str, ...]
):
    model = copy("pretrained")
    swap_tokens(model)
    arguments = [part.format(model=model, home=home, tmp_path=tmp_path) for part in command]
    assert_refused(run_command(*arguments), "tokenizer.json was changed")


def test_a_readme_may_be_edited(copy: Callable[[str], Path], predict: Callable[[Path], CommandResult]):
    model = copy("model")
    (model / "README.md").write_text("# Mail\n")
    assert predict(model).returncode == 0


def test_verify_describes_folders_with_and_without_hashes(
    run_command: RunCommand, home: Path, copy: Callable[[str], Path]
):
    assert run_command("verify", str(home / "onnx")).stdout == f"{home}/onnx: 7 files, all hashes match\n"
    assert run_command("verify", str(home / "corpus")).stdout == f"{home}/corpus: 2 files, all hashes match\n"
    model = copy("model")
    forget_hashes(model)
    tensors = load_file(model / "model.safetensors")
    tensors["adapter.weight"] = tensors["bert.pooler.dense.bias"].clone()
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    assert run_command("verify", str(model)).stdout == (
        f"tensors that the model does not use: adapter.weight\n"
        f"{model}: no hashes are recorded; `bertworks verify --accept {model}` records them\n"
    )
    result = run_command("verify", str(model), "--accept")
    assert "accepted: model.safetensors\n" in result.stdout
    assert result.stdout.endswith(f"{model}: 6 files, all hashes match\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere is not a folder; give a model, a finished run or a corpus"),
        (("{home}/corpus/text",), "has no config.json; give a model, a finished run or a corpus"),
        (("{home}/corpus", "--accept"), "is a corpus, whose files must not change; prepare it again instead"),
    ],
)
def test_what_cannot_be_verified_is_one_sentence(
    run_command: RunCommand, home: Path, arguments: tuple[str, ...], message: str
):
    assert_refused(run_command("verify", *(part.format(home=home) for part in arguments)), message)


def damage_shard(folder: Path) -> Path:
    (path,) = folder.glob("tokens/*/*.safetensors")
    zero_bytes(path, 600, 8)
    return path


@pytest.mark.parametrize("command", ["pretrain", "show", "verify", "plan"])
def test_every_command_that_reads_a_corpus_notices_a_damaged_shard(
    run_command: RunCommand, copy: Callable[[str], Path], tmp_path: Path, command: str
):
    corpus = copy("corpus")
    path = damage_shard(corpus)
    (tmp_path / "recipe.toml").write_text(to_toml(RECIPE))
    arguments = {
        "pretrain": (str(tmp_path / "recipe.toml"), "--data", str(corpus), "--output", str(tmp_path / "run")),
        "show": (str(corpus),),
        "verify": (str(corpus),),
        "plan": ("--data", str(corpus), "--budget", "1m"),
    }
    assert_refused(run_command(command, *arguments[command]), str(path))
    assert not (tmp_path / "run").exists()


def test_damaged_text_is_noticed_by_word_vectors_and_by_another_vocabulary(
    run_command: RunCommand, copy: Callable[[str], Path], home: Path, tmp_path: Path
):
    corpus = copy("corpus")
    (path,) = corpus.glob("text/*.jsonl")
    path.write_text(path.read_text().replace("river", "liver"))
    result = run_command("word-vectors", "train", str(corpus), "--kind", "glove", "--output", str(tmp_path / "v"))
    assert_refused(result, str(path))
    result = run_command("prepare", "--vocab", str(home / "pretrained"), "--output", str(corpus))
    assert_refused(result, str(path))


def test_a_foreign_folder_with_fewer_layers_in_its_config_than_in_its_weights_is_refused(
    copy: Callable[[str], Path], predict: Callable[[Path], CommandResult]
):
    model = forget_hashes(copy("model"))
    change_layer_count(model)
    assert_refused(
        predict(model), "model.safetensors holds 'bert.encoder.layer.1.", "a layer that the encoder of config.json"
    )


@pytest.mark.parametrize("has_metadata", [True, False])
def test_a_change_with_which_the_model_cannot_be_loaded_is_not_accepted(
    run_command: RunCommand, copy: Callable[[str], Path], has_metadata: bool
):
    model = copy("pretrained")
    if not has_metadata:
        (model / "bertworks.json").unlink()
    change_layer_count(model)
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    assert_refused(run_command("verify", str(model), "--accept"), "a layer that the encoder of config.json")
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
