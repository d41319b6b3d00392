"""Packaged models: found by name in installed packages, then in the checkout; a local folder takes precedence."""

from pathlib import Path

import pytest
from damage import forget_hashes
from packaged_models import write_package
from small_models import write_pretrained

import bertworks
from bertworks import packages
from bertworks.commands.doctor.run import examine
from bertworks.corpus.corpus import Corpus
from bertworks.errors import InputError, SettingsError
from bertworks.models.hub import fetch
from bertworks.models.provenance import display_name, folders_of
from bertworks.packages import available_models, is_model_name, packaged_model
from bertworks.serving.models import named_folders
from bertworks.text.sources import TextSource
from bertworks.vocabulary.tokenizer import Tokenizer

CHECKOUT = packages._CHECKOUT_MODELS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pretrained(tmp_path_factory.mktemp("packages") / "pretrained")


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty checkout whose only own model is xx-tiny, and an empty working directory."""
    monkeypatch.setattr(packages, "_CHECKOUT_MODELS", tmp_path / "checkout")
    monkeypatch.setattr(packages, "MODELS", ("xx-tiny",))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "checkout"


@pytest.fixture(autouse=True)
def no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a request to the hub")

    monkeypatch.setattr("bertworks.models.hub_download.snapshot_download", refuse)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on sys.path, as site-packages is."""
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path / "site"


def test_an_installed_package_is_found_by_the_name_of_its_model(site: Path, model: Path):
    folder = write_package(site, "bertworks_xx_tiny", model)
    assert fetch("xx-tiny") == folder
    assert bertworks.load("xx-tiny").folder == folder


def test_a_package_of_somebody_else_is_found_too(site: Path, model: Path):
    folder = write_package(site, "bertworks_my_model_2", model)
    assert fetch("my-model-2") == folder


def test_a_package_in_the_checkout_is_found(checkout: Path, model: Path):
    folder = write_package(checkout / "xx-tiny", "bertworks_xx_tiny", model)
    assert fetch("xx-tiny") == folder


def test_an_installed_package_takes_precedence_over_the_checkout(checkout: Path, site: Path, model: Path):
    write_package(checkout / "xx-tiny", "bertworks_xx_tiny", model)
    folder = write_package(site, "bertworks_xx_tiny", model)
    assert fetch("xx-tiny") == folder


def test_a_local_folder_takes_precedence_over_a_package(site: Path, model: Path):
    write_package(site, "bertworks_xx_tiny", model)
    Path("xx-tiny").mkdir()
    assert fetch("xx-tiny") == Path("xx-tiny")


def test_the_source_folder_of_a_package_stands_for_its_model(tmp_path: Path, model: Path):
    folder = write_package(tmp_path / "models" / "xx-tiny", "bertworks_xx_tiny", model)
    assert fetch(str(tmp_path / "models" / "xx-tiny")) == folder


def test_the_checkout_is_the_folder_models_beside_the_source():
    source = Path(bertworks.__file__).resolve().parents[1]
    assert source.name == "src"
    assert source.parent / "models" == CHECKOUT


def test_a_missing_model_of_ours_is_refused_with_the_command_that_installs_it():
    message = (
        "the model 'xx-tiny' is not installed; install it from a clone of bertworks with `pip install "
        r"./models/xx-tiny`, or give a folder \(models that are here: none\)"
    )
    for find in (fetch, Tokenizer.load, bertworks.load):
        with pytest.raises(InputError, match=message):
            find("xx-tiny")


def test_the_refusal_names_the_models_that_are_here(checkout: Path, site: Path, model: Path):
    write_package(checkout / "yy-tiny", "bertworks_yy_tiny", model)
    write_package(site, "bertworks_my_model_2", model)
    (site / "bertworks_tools").mkdir()  # a package without a model
    (site / "bertworks_tools" / "__init__.py").write_text("")
    assert available_models() == ["my-model-2", "yy-tiny"]
    with pytest.raises(InputError, match=r"models that are here: my-model-2, yy-tiny\)"):
        fetch("xx-tiny")


def test_a_packaged_model_has_no_revisions(site: Path, model: Path):
    write_package(site, "bertworks_xx_tiny", model)
    with pytest.raises(SettingsError, match="has no revision 'v2'"):
        fetch("xx-tiny", "v2")


def test_a_package_without_a_model_is_not_a_packaged_model(site: Path):
    (site / "bertworks_xx_tiny").mkdir()
    (site / "bertworks_xx_tiny" / "__init__.py").write_text("")
    assert packaged_model("xx-tiny") is None


@pytest.mark.parametrize("name", ["owner/xx-tiny", "xx_tiny", "xx--tiny", "-xx", "xx-", "Xx", "xx.tiny", "模型", ""])
def test_other_names_are_not_those_of_packages(site: Path, model: Path, name: str):
    write_package(site, "bertworks_xx_tiny", model)
    assert not is_model_name(name)
    assert packaged_model(name) is None


def test_the_vocabulary_of_a_packaged_model_is_loaded_by_its_name(site: Path, model: Path):
    write_package(site, "bertworks_xx_tiny", model)
    assert Tokenizer.load("xx-tiny").tokens == Tokenizer.load(model).tokens


def test_the_tokens_of_a_corpus_are_selected_by_the_name_of_a_packaged_model(
    site: Path, model: Path, numbered, vocabulary: Path
):
    folder = write_package(site, "bertworks_xx_tiny", model)
    for name in ("vocab.txt", "tokenizer.json"):
        (folder / name).unlink()
    (folder / "vocab.txt").write_bytes(vocabulary.read_bytes())
    forget_hashes(folder)
    assert Corpus.open(numbered.corpus.folder, "xx-tiny").tokens_folder == numbered.corpus.tokens_folder


def test_serving_names_a_packaged_model_after_itself(site: Path, model: Path):
    folder = write_package(site, "bertworks_xx_tiny", model)
    assert named_folders(["xx-tiny"]) == {"xx-tiny": str(folder)}
    assert named_folders(["mine=xx-tiny"]) == {"mine": str(folder)}


def test_a_run_records_the_folder_of_its_packaged_base(site: Path, model: Path):
    folder = write_package(site, "bertworks_xx_tiny", model)
    assert folders_of("xx-tiny") == {"base_folder": str(folder.resolve())}
    assert display_name("xx-tiny") == display_name(folder) == "xx-tiny"


def test_the_doctor_checks_text_against_the_vocabulary_of_a_packaged_model(site: Path, model: Path, tmp_path: Path):
    write_package(site, "bertworks_xx_tiny", model)
    (tmp_path / "text.txt").write_text("The cat sat on the mat. It was very good.\n")
    diagnosis = examine([TextSource(str(tmp_path / "text.txt"))], vocabulary=Path("xx-tiny"), workers=1)
    assert diagnosis.vocabulary is not None
    assert diagnosis.vocabulary.unknown_ratio == 0.0
