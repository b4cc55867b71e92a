"""A book you can run, an engine you can read: fast batch-1 decoding of GGUF language models."""
__version__ = "0.1.0"


def __getattr__(name):
    # `from alphabook import Engine` without compiling a backend for those who only read a file
    if name in ("Engine", "Generation"):
        import alphabook.engine
        return getattr(alphabook.engine, name)
    raise AttributeError(f"module 'alphabook' has no attribute '{name}'")
