"""Models as Python packages: the name of a model in, its folder out, from an installed package or from a checkout.

The package of the model `en-small` is `bertworks-en-small`; its module is `bertworks_en_small`:

    models/en-small/                        in a checkout of bertworks, beside `src`
        pyproject.toml, README.md           README.md is the model card
        bertworks_en_small/__init__.py
        bertworks_en_small/model/           config.json, model.safetensors, tokenizer files, bertworks.json

A package is found by its module name, without importing it and without a request to the hub.
"""

from __future__ import annotations

import importlib.util
import pkgutil
import re
from pathlib import Path

from bertworks.errors import InputError
from bertworks.reading import check_path

# Our own models: these names are never requested from the hub.
MODELS = ("en-small", "zh-small")
MODEL_FOLDER = "model"
_MODULE_PREFIX = "bertworks_"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# This file is src/bertworks/packages.py in a checkout; in an installed package there is no such folder.
_CHECKOUT_MODELS = Path(__file__).resolve().parents[2] / "models"


def packaged_model(name: str) -> Path | None:
    """Return the model folder of a package, by the model's name or by the folder of the package; None if it is none.

    A local folder takes precedence over a package of the same name, an installed package over the checkout.
    """
    local = Path(name)
    check_path(local)
    if local.exists():
        return model_inside(local)
    if not is_model_name(name):
        return None
    return _installed_model(name) or model_inside(_CHECKOUT_MODELS / name)


def check_installed(name: str) -> None:
    """Refuse the name of one of our own models, which was not found: how to get it, and which models are here."""
    if name in MODELS:
        available = ", ".join(available_models()) or "none"
        raise InputError(
            f"the model '{name}' is not installed; install it from a clone of bertworks with "
            f"`pip install ./models/{name}`, or give a folder (models that are here: {available})"
        )


def is_model_name(name: str) -> bool:
    """Return whether a name can be that of a packaged model: lower-case letters, digits, single hyphens."""
    return _NAME.fullmatch(name) is not None


def module_name(name: str) -> str:
    """Return the module of a packaged model: en-small -> bertworks_en_small."""
    return _MODULE_PREFIX + name.replace("-", "_")


def model_name(module: str) -> str:
    """Return the model of a module: bertworks_en_small -> en-small; any other name is returned as it is."""
    return module.removeprefix(_MODULE_PREFIX).replace("_", "-") if module.startswith(_MODULE_PREFIX) else module


def available_models() -> list[str]:
    """Return the names of all packaged models that are installed or in the checkout."""
    modules = [module.name for module in pkgutil.iter_modules() if module.name.startswith(_MODULE_PREFIX)]
    installed = [name for name in map(model_name, modules) if _installed_model(name) is not None]
    in_checkout = [path.name for path in _CHECKOUT_MODELS.glob("*") if model_inside(path) is not None]
    return sorted({*installed, *in_checkout})


def _installed_model(name: str) -> Path | None:
    spec = importlib.util.find_spec(module_name(name))
    locations = [] if spec is None else spec.submodule_search_locations or []
    return next(filter(_is_model, (Path(location) / MODEL_FOLDER for location in locations)), None)


def model_inside(package: Path) -> Path | None:
    """Return the model folder in the source folder of a package; None if it is no such folder."""
    if not (package / "pyproject.toml").is_file():
        return None
    return next(filter(_is_model, sorted(package.glob(f"{_MODULE_PREFIX}*/{MODEL_FOLDER}"))), None)


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()
