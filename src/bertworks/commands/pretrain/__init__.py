"""Pretrain a model on a corpus folder."""
