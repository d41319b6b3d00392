"""LoRA and DoRA adapters are merged at load: by hand, and with the logits of PEFT itself (fixtures/make_peft.py)."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from family_models import randomize_weights
from safetensors.torch import save_file
from small_models import CONFIG, TOKENS

import bertworks
from bertworks.encoders.config import config_to_dict
from bertworks.errors import FolderError
from bertworks.models.folder import read_folder

QUERY = "bert.encoder.layer.0.attention.self.query"
RANK, ALPHA = 2, 6
FIXTURES = Path(__file__).parent / "fixtures" / "peft"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    config = transformers.BertConfig(**config_to_dict(CONFIG, ["BertModel"]))
    randomize_weights(transformers.BertModel(config)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return folder


def write_adapter(folder: Path, base: Path, prefix: str = "base_model.model.", **settings: Any) -> dict:
    """Write an adapter of one query matrix and a head of three classes, as PEFT does; return its tensors."""
    generator = torch.Generator().manual_seed(3)
    size = CONFIG.hidden_size
    tensors = {
        f"{prefix}{QUERY}.lora_A.weight": torch.randn(RANK, size, generator=generator),
        f"{prefix}{QUERY}.lora_B.weight": torch.randn(size, RANK, generator=generator),
        f"{prefix}classifier.weight": torch.randn(3, size, generator=generator),
        f"{prefix}classifier.bias": torch.randn(3, generator=generator),
    }
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "SEQ_CLS", "base_model_name_or_path": str(base), "r": RANK,
              "lora_alpha": ALPHA, "target_modules": ["query"], "modules_to_save": ["classifier"]}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps({**config, **settings}))
    return {name.removeprefix(prefix): values for name, values in tensors.items()}


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({}, ALPHA / RANK),
        ({"use_rslora": True}, ALPHA / math.sqrt(RANK)),
        ({"alpha_pattern": {"query": 8}, "rank_pattern": {"value": 1}}, 8 / RANK),
    ],
)
def test_the_adapter_is_added_to_the_weight(base: Path, tmp_path: Path, settings: dict, scale: float):
    tensors = write_adapter(tmp_path / "adapter", base, **settings)
    merged, original = read_folder(tmp_path / "adapter").tensors, read_folder(base).tensors
    delta = scale * tensors[f"{QUERY}.lora_B.weight"] @ tensors[f"{QUERY}.lora_A.weight"]
    torch.testing.assert_close(merged[f"{QUERY}.weight"], original[f"{QUERY}.weight"] + delta)
    assert torch.equal(merged[f"{QUERY}.bias"], original[f"{QUERY}.bias"])
    assert torch.equal(merged["classifier.weight"], tensors["classifier.weight"])


def test_a_merged_classifier_predicts_as_transformers_with_the_merged_weights(base: Path, tmp_path: Path):
    tensors = write_adapter(tmp_path / "adapter", base)
    config = transformers.BertConfig(**config_to_dict(CONFIG, []), num_labels=3)
    theirs = transformers.BertForSequenceClassification(config).eval()
    encoder = transformers.BertModel.from_pretrained(base).state_dict()
    state = {f"bert.{name}": values for name, values in encoder.items()}
    state |= {name: values for name, values in tensors.items() if name.startswith("classifier")}
    state[f"{QUERY}.weight"] += ALPHA / RANK * tensors[f"{QUERY}.lora_B.weight"] @ tensors[f"{QUERY}.lora_A.weight"]
    theirs.load_state_dict(state)
    model = bertworks.load(tmp_path / "adapter")
    (prediction,) = model.predict(["the cat sat"])
    input_ids = torch.tensor([model.tokenizer.encode("the cat sat").input_ids])
    with torch.inference_mode():
        assert prediction.logits.tolist() == pytest.approx(theirs(input_ids).logits[0].tolist(), abs=1e-5)
    assert tuple(prediction.probabilities) == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert "merged" in model.report.notes[0]


def adapter_of_peft(name: str, folder: Path) -> Path:
    """Copy an adapter that PEFT wrote, with the path of its base model."""
    shutil.copytree(FIXTURES / name, folder)
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = str(FIXTURES / settings["base_model_name_or_path"])
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("name", ["lora", "dora"])
def test_the_logits_are_those_of_peft(name: str, tmp_path: Path):
    logits = json.loads((FIXTURES / "logits.json").read_text())
    predictions = bertworks.load(adapter_of_peft(name, tmp_path / name), precision="fp32").predict(logits["texts"])
    for prediction, expected in zip(predictions, logits[name], strict=True):
        assert prediction.logits.tolist() == pytest.approx(expected, abs=1e-5)


def test_dora_scales_each_row_to_its_magnitude(base: Path, tmp_path: Path):
    tensors = write_adapter(tmp_path / "adapter", base, use_dora=True)
    magnitude = torch.arange(1.0, CONFIG.hidden_size + 1)
    prefix = "base_model.model."
    tensors = {f"{prefix}{name}": values for name, values in tensors.items()}
    save_file(
        {**tensors, f"{prefix}{QUERY}.lora_magnitude_vector.weight": magnitude},
        tmp_path / "adapter" / "adapter_model.safetensors",
    )
    merged, original = read_folder(tmp_path / "adapter").tensors, read_folder(base).tensors
    torch.testing.assert_close(merged[f"{QUERY}.weight"].norm(dim=1), magnitude)
    delta = ALPHA / RANK * tensors[f"{prefix}{QUERY}.lora_B.weight"] @ tensors[f"{prefix}{QUERY}.lora_A.weight"]
    cosines = torch.cosine_similarity(merged[f"{QUERY}.weight"], original[f"{QUERY}.weight"] + delta)
    torch.testing.assert_close(cosines, torch.ones_like(cosines))


def test_an_adapter_of_a_bare_encoder_has_names_without_a_prefix(base: Path, tmp_path: Path):
    write_adapter(tmp_path / "one", base)
    write_adapter(tmp_path / "two", base, prefix="base_model.model.")
    tensors = {
        name.replace("base_model.model.bert.", "base_model.model."): values
        for name, values in {
            f"base_model.model.{name}": values for name, values in write_adapter(tmp_path / "two", base).items()
        }.items()
        if "lora" in name
    }
    save_file(tensors, tmp_path / "two" / "adapter_model.safetensors")
    settings = json.loads((tmp_path / "two" / "adapter_config.json").read_text())
    (tmp_path / "two" / "adapter_config.json").write_text(json.dumps({**settings, "task_type": "FEATURE_EXTRACTION"}))
    first, second = (read_folder(tmp_path / name).tensors[f"{QUERY}.weight"] for name in ("one", "two"))
    assert torch.equal(first, second)
    assert bertworks.load(tmp_path / "two").predictor is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', but only LORA adapters are merged"),
        ({"use_dora": True}, r"the adapter of '.*query' are not complete"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which is not supported"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices is .*, which is not supported"),
        ({"base_model_name_or_path": None}, "names no base model"),
        ({"r": 0}, "r and lora_alpha must be numbers above 0"),
        ({"r": True}, "r and lora_alpha must be numbers above 0"),
        ({"r": 10**400}, "r and lora_alpha must be numbers above 0"),
        ({"lora_alpha": math.nan}, "r and lora_alpha must be numbers above 0"),
        ({"lora_alpha": math.inf}, "r and lora_alpha must be numbers above 0"),
        ({"r": 7}, "the rank of '.*query' is 7, but its matrices have 2"),
        ({"rank_pattern": {"query": 3}}, "the rank of '.*query' is 3, but its matrices have 2"),
        ({"rank_pattern": [3]}, "rank_pattern must be a table of names"),
        ({"alpha_pattern": {"(": 3}}, r"the pattern '\(' cannot be used \(missing \)"),
        ({"alpha_pattern": {"(.|[a-z])+[A-Z]": 3}}, r"the pattern .* cannot be used \(.*timed out\)"),
    ],
)
def test_what_cannot_be_merged_is_refused(base: Path, tmp_path: Path, settings: dict, message: str):
    write_adapter(tmp_path / "adapter", base, **settings)
    with pytest.raises(FolderError, match=message):
        read_folder(tmp_path / "adapter")


def test_an_adapter_of_gpt_has_the_tokenizer_of_its_base_without_special_tokens(tmp_path: Path):
    vocab = ["<unk>", *"abct", *(f"{letter}</w>" for letter in "abct")]
    base, name = tmp_path / "base", "transformer.h.0.attn.c_attn"
    config = transformers.OpenAIGPTConfig(vocab_size=len(vocab), n_embd=16, n_layer=1, n_head=2, n_positions=32)
    peer = transformers.OpenAIGPTForSequenceClassification(config).eval()
    peer.save_pretrained(base)
    (base / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(vocab)}))
    (base / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "adapter").mkdir()
    first, second = torch.randn(2, 16), torch.randn(48, 2)
    tensors = {f"base_model.model.{name}.lora_A.weight": first, f"base_model.model.{name}.lora_B.weight": second}
    save_file(tensors, tmp_path / "adapter" / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True}
    settings["base_model_name_or_path"] = str(base)
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    model = bertworks.load(tmp_path / "adapter", precision="fp32")
    with torch.no_grad():
        peer.get_parameter(f"{name}.weight").add_((second @ first).T)
        logits = peer(torch.tensor([[vocab.index(token) for token in ("c", "a", "t</w>")]])).logits[0]
    assert model.predict("cat").logits.tolist() == pytest.approx(logits.tolist(), abs=1e-5)


def test_an_adapter_without_matrices_is_refused(base: Path, tmp_path: Path):
    tensors = write_adapter(tmp_path / "adapter", base)
    head = {name: values for name, values in tensors.items() if name.startswith("classifier")}
    save_file(head, tmp_path / "adapter" / "adapter_model.safetensors")
    with pytest.raises(FolderError, match="has no matrices lora_A and lora_B"):
        read_folder(tmp_path / "adapter")


def test_an_adapter_of_an_adapter_is_refused(base: Path, tmp_path: Path):
    write_adapter(tmp_path / "adapter", tmp_path / "adapter")
    with pytest.raises(FolderError, match="is an adapter, too; merge that one with PEFT"):
        read_folder(tmp_path / "adapter")
