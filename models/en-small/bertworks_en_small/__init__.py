"""The model en-small of bertworks: `bertworks.load("en-small")`; `folder` is its model folder, for other libraries."""

from pathlib import Path

__version__ = "1.1.0"

folder = Path(__file__).parent / "model"


def load():
    """Return the model, as `bertworks.load("en-small")` does."""
    import bertworks

    return bertworks.load(folder)
