"""Packages: files, equal bytes, refusals that write nothing, a wheel loaded by name, and fp16 weights in every use."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from damage import forget_hashes
from safetensors.torch import load_file, save_file
from small_models import write_finetuned, write_pretrained
from small_run import RECIPE, prepare_corpus, run

import bertworks
from bertworks import packages
from bertworks.commands.pretrain.build import build, resolve_model_init
from bertworks.corpus.corpus import Corpus
from bertworks.errors import BertworksError, FolderError, InputError, SettingsError
from bertworks.exporters.export import ExportRequest, export
from bertworks.exporters.package import PackageRequest, PackageResult, package
from bertworks.inference.model import load
from bertworks.sampling.batch import collate_sequences
from bertworks.serving.models import load_served_model
from bertworks.tasks.classify import Classify
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

FILES = [
    "README.md",
    "bertworks_xx_tiny/__init__.py",
    "bertworks_xx_tiny/model/README.md",
    "bertworks_xx_tiny/model/bertworks.json",
    "bertworks_xx_tiny/model/certificate.json",
    "bertworks_xx_tiny/model/config.json",
    "bertworks_xx_tiny/model/model.safetensors",
    "bertworks_xx_tiny/model/tokenizer.json",
    "bertworks_xx_tiny/model/tokenizer_config.json",
    "bertworks_xx_tiny/model/vocab.txt",
    "pyproject.toml",
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, a pretraining run of a second and the package `models/xx-tiny` of its model."""
    folder = tmp_path_factory.mktemp("package")
    run(prepare_corpus(folder), folder / "run")
    make(folder / "run", folder / "models" / "xx-tiny")
    return folder


def make(model: Path, output: Path, **settings: Any) -> PackageResult:
    return package(PackageRequest(**{"model": str(model), "name": "xx-tiny", "output": output, **settings}))


def files_in(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def model_of(package_folder: Path) -> Path:
    return package_folder / "bertworks_xx_tiny" / "model"


def test_a_package_has_a_project_a_card_and_the_model_folder(home: Path):
    assert list(files_in(home / "models" / "xx-tiny")) == FILES


def test_the_project_names_package_version_license_and_data(home: Path, tmp_path: Path):
    make(home / "run", tmp_path / "out", version="2.1.0", license="CC-BY-SA-4.0 OR MIT")
    project = tomllib.loads((tmp_path / "out" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "bertworks-xx-tiny"
    assert project["project"]["version"] == "2.1.0"
    assert project["project"]["license"] == "CC-BY-SA-4.0 OR MIT"
    assert "dependencies" not in project["project"]  # transformers reads the model without bertworks
    assert project["tool"]["setuptools"]["packages"] == ["bertworks_xx_tiny"]
    assert project["tool"]["setuptools"]["package-data"] == {"bertworks_xx_tiny": ["model/**"]}
    metadata = json.loads((model_of(tmp_path / "out") / "bertworks.json").read_text())
    assert (metadata["name"], metadata["version"], metadata["objective"]) == ("xx-tiny", "2.1.0", "mlm-nsp")


def test_the_weights_are_those_of_the_model_rounded_to_fp16(home: Path):
    before = load_file(home / "run" / "model" / "model.safetensors")
    after = load_file(model_of(home / "models" / "xx-tiny") / "model.safetensors")
    assert before.keys() == after.keys()
    for name, values in before.items():
        assert torch.equal(after[name], values.half())


def test_the_same_inputs_give_the_same_bytes(home: Path, tmp_path: Path):
    """By the run or by its model folder."""
    make(home / "run" / "model", tmp_path / "again")
    assert files_in(tmp_path / "again") == files_in(home / "models" / "xx-tiny")


def test_the_card_has_the_records_of_the_run_and_its_corpus(home: Path):
    card = (home / "models" / "xx-tiny" / "README.md").read_text()
    metrics = [json.loads(line) for line in (home / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in metrics if record["kind"] == "held_out"][-1]
    manifest = json.loads((home / "corpus" / "manifest.json").read_text())
    assert f"{manifest['documents']} documents, {manifest['sentences']} sentences" in card
    assert "| text.txt |" in card
    assert "12 steps" in card
    (row,) = (line for line in card.splitlines() if line.startswith("| 12 | 32 |"))
    assert f"| {last['losses']['mlm']:.3f} | {last['losses']['nsp']:.3f} |" in row
    assert "max_length = 16" in card
    assert str(home) not in card


def test_both_precisions_are_compared_on_held_out_texts(home: Path):
    certificate = json.loads((model_of(home / "models" / "xx-tiny") / "certificate.json").read_text())
    assert certificate["texts"].endswith("texts of the held-out documents")
    assert certificate["mlm"]["loss_after"] == pytest.approx(certificate["mlm"]["loss_before"], abs=1e-2)
    assert certificate["scheme"]["max_rounding_error"] > 0


def test_given_texts_are_compared_instead(home: Path, tmp_path: Path):
    (tmp_path / "texts.txt").write_text("The river.\nThe road of bread and silver.\n")
    result = make(home / "run", tmp_path / "out", texts=tmp_path / "texts.txt")
    assert result.certificate["texts"] == "the first 2 texts of texts.txt"


def test_without_a_run_the_result_says_what_the_card_lacks(tmp_path: Path):
    result = make(write_pretrained(tmp_path / "pretrained"), tmp_path / "out")
    assert [text.partition(":")[0] for text in result.absent] == [
        "no training, learning curve and baselines",
        "no sources and languages of the data",
        "no origins and licences of the data, no scores of tasks",
    ]
    assert result.certificate["texts"] == "the 36 built-in English and Chinese texts"
    assert result.num_bytes == sum(map(len, files_in(tmp_path / "out").values()))


def test_run_corpus_and_notes_can_be_given(home: Path, tmp_path: Path):
    shutil.copytree(home / "run" / "model", tmp_path / "elsewhere")
    (tmp_path / "notes.md").write_text("## Data\n\nWritten by us.\n")
    options = {"run": home / "run", "corpus": home / "corpus", "notes": tmp_path / "notes.md"}
    assert make(tmp_path / "elsewhere", tmp_path / "out", **options).absent == ()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| text.txt |" in card
    assert "\n\nWritten by us.\n\n## Training\n" in card


def test_a_finetuned_model_can_be_packaged(tmp_path: Path):
    folder = write_finetuned(tmp_path / "mail", Classify(labels=("bad", "good")))
    make(folder, tmp_path / "out")
    text = "the film was dull"
    before, after = (load(path).predict([text])[0] for path in (folder, model_of(tmp_path / "out")))
    assert after.label == before.label


def test_a_corpus_that_has_changed_is_not_described(home: Path, tmp_path: Path):
    shutil.copytree(home / "run", tmp_path / "run")
    metadata = json.loads((tmp_path / "run" / "model" / "bertworks.json").read_text())
    (tmp_path / "run" / "model" / "bertworks.json").write_text(json.dumps({**metadata, "corpus_sha256": "0" * 64}))
    forget_hashes(tmp_path / "run" / "model")
    assert "--corpus" in make(tmp_path / "run", tmp_path / "out").absent[0]
    with pytest.raises(
        FolderError, match=r"corpus is not the corpus that .* was trained on \(its text has another hash\)"
    ):
        make(tmp_path / "run", tmp_path / "again", corpus=home / "corpus")


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"name": "XX_tiny"},
            SettingsError,
            "'XX_tiny' cannot be the name of a packaged model; use lower-case letters",
        ),
        ({"version": "first"}, SettingsError, "'first' is no version of a Python package; write it like 1.0.0"),
        ({"license": "my own"}, SettingsError, "'my own' is no SPDX license expression; write it like Apache-2.0"),
        ({"max_megabytes": 0.001}, FolderError, r"MB in fp16, and 0\.001 MB are allowed; .* raise --max-megabytes"),
        ({"difference": 1e-9}, FolderError, r"is refused.*last_hidden_state differs by .*\(--tolerance\)"),
        ({"notes": Path("missing.md")}, InputError, r"missing\.md cannot be read as notes of the model card"),
        ({"run": Path("missing")}, FolderError, r"missing has no run\.json; give the run folder"),
    ],
)
def test_refusals_name_the_remedy_and_write_nothing(
    home: Path, tmp_path: Path, settings: dict[str, Any], error: type[BertworksError], message: str
):
    shutil.copytree(home / "run" / "model", tmp_path / "trained")
    with pytest.raises(error, match=message):
        make(tmp_path / "trained", tmp_path / "out", **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["trained"]


def test_a_run_that_is_not_finished_is_refused(home: Path, tmp_path: Path):
    run(home / "corpus", tmp_path / "run", stop_after=2)
    with pytest.raises(
        FolderError, match="run is a run that is not finished and has no model yet; finish it with its own"
    ):
        make(tmp_path / "run", tmp_path / "out")


def test_weights_that_are_not_finite_are_refused_and_nothing_is_written(tmp_path: Path):
    folder = write_pretrained(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.pooler.dense.bias"][3] = float("inf")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    forget_hashes(folder)
    with pytest.raises(FolderError, match=r"tensor 'bert\.pooler\.dense\.bias' has values that are not finite"):
        make(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_empty_is_refused(home: Path, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FolderError, match="already exists; choose another output folder, or remove it"):
        make(home / "run", tmp_path)


def test_a_wheel_contains_the_weights_and_is_loaded_by_name(home: Path, tmp_path: Path):
    shutil.copytree(home / "models" / "xx-tiny", tmp_path / "xx-tiny")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    offline = ["--no-deps", "--no-index"]
    wheels = [*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", tmp_path / "wheels", tmp_path / "xx-tiny"]
    subprocess.run(wheels, check=True, capture_output=True)
    (wheel,) = (tmp_path / "wheels").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) >= {name for name in FILES if "/" in name}
        metadata = archive.read("bertworks_xx_tiny-1.0.0.dist-info/METADATA").decode()
    assert "\n# xx-tiny\n" in metadata  # the model card
    subprocess.run([*pip, "install", *offline, "--target", tmp_path / "site", wheel], check=True, capture_output=True)
    (tmp_path / "elsewhere").mkdir()
    source = str(Path(bertworks.__file__).parents[1])
    code = (
        'import bertworks, bertworks_xx_tiny; model = bertworks.load("xx-tiny", precision="fp32"); '
        "assert bertworks_xx_tiny.load().folder == model.folder; "
        'print(bertworks_xx_tiny.__version__, model.folder, model.fill_mask("The [MASK] .").sequences[0].text)'
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, str(tmp_path / "site")]), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    expected = load(model_of(home / "models" / "xx-tiny"), precision="fp32").fill_mask("The [MASK] .").sequences[0].text
    folder = tmp_path / "site" / "bertworks_xx_tiny" / "model"
    assert result.stdout.strip() == f"1.0.0 {folder} {expected}"


@pytest.fixture
def by_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the packaged model, which is found as in a checkout."""
    monkeypatch.setattr(packages, "_CHECKOUT_MODELS", home / "models")
    return "xx-tiny"


def test_a_packaged_model_is_loaded_in_fp32(home: Path, by_name: str):
    model = load(by_name, precision="fp32")
    assert {parameter.dtype for parameter in model.encoder.parameters()} == {torch.float32}
    assert model.report.missing_keys == ()
    embeddings = load_file(home / "run" / "model" / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    assert torch.equal(model.encoder.token_embeddings.weight, embeddings.half().float())


def test_transformers_reads_the_model_folder_as_it_is(home: Path, by_name: str):
    model, text = load(by_name, precision="fp32"), "The river of bread and silver."
    peer = transformers.AutoModelForMaskedLM.from_pretrained(model_of(home / "models" / "xx-tiny")).eval()
    encoding = model.tokenizer.encode(text)
    with torch.inference_mode():
        expected = peer.base_model(torch.tensor([encoding.input_ids])).last_hidden_state
        actual = model.encoder(collate_sequences([encoding], model.tokenizer.specials.pad)).to_padded()
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def test_pretraining_continues_from_a_packaged_model_in_fp32(home: Path, by_name: str):
    corpus = Corpus.open(home / "corpus")
    model_init = resolve_model_init(RECIPE, corpus.tokenizer, by_name)
    module, notes = build(model_init, RECIPE, torch.zeros(corpus.tokenizer.vocab_size).numpy())
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    assert notes == ["the vocabulary is the model's own"]


def test_a_packaged_model_is_adapted_to_an_extended_vocabulary(home: Path, by_name: str, tmp_path: Path):
    tokens = [*Tokenizer.load(by_name).tokens, "riverstone"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    model_init = resolve_model_init(RECIPE, Tokenizer.load(tmp_path / "vocab.txt"), by_name)
    module, _ = build(model_init, RECIPE, torch.zeros(len(tokens)).numpy())
    assert module.encoder.token_embeddings.weight.shape[0] == len(tokens)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


def test_a_packaged_model_is_finetuned_in_fp32(by_name: str, tmp_path: Path):
    rows = [f"the {word}\t{label}" for word, label in (("river", "wet"), ("bread", "dry"))] * 4
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    options = {"epochs": 1, "batch_size": 4, "max_length": 16, "precision": "fp32", "on_event": lambda event: None}
    train = tmp_path / "train.tsv"
    bertworks.finetune("classify", model=by_name, train=train, dev=train, output=tmp_path / "run", **options)
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert {values.dtype for values in weights.values()} == {torch.float32}
    assert json.loads((tmp_path / "run" / "model" / "bertworks.json").read_text())["base"] == "xx-tiny"


def test_a_packaged_model_is_exported(by_name: str, tmp_path: Path):
    certificate = export(ExportRequest(model=by_name, target="onnx", output=tmp_path / "out")).certificate
    assert max(certificate["max_difference"].values()) < 1e-4


def test_a_packaged_model_is_served(by_name: str):
    served = load_served_model("tiny", by_name, lambda: None, precision="fp32")
    assert "fill-mask" in served.capabilities
