"""Engines: sequences in, encoder outputs out, fast, in PyTorch, ONNX Runtime or OpenVINO; batches by length."""
