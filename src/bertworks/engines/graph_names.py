"""The names of a graph's inputs and outputs, as Optimum writes them; importable without the code that builds graphs."""

from __future__ import annotations

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LAST_HIDDEN_STATE, POOLER_OUTPUT, LOGITS = "last_hidden_state", "pooler_output", "logits"
START_LOGITS, END_LOGITS = "start_logits", "end_logits"
