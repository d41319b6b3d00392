"""Old import path, until the last imports are changed."""

from bertworks.encoders.bert import BertConfig as BertConfig
from bertworks.encoders.encoder import Encoder as Encoder
from bertworks.encoders.encoder import init_weights as initialise  # noqa: F401
