"""marin: a framework for foundation-model research."""

__version__ = "0.1.0"
