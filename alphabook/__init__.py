"""A book you can run, an engine you can read: fast batch-1 decoding of GGUF language models."""
__version__ = "0.1.0"
