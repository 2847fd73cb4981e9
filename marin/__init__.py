"""marin: a framework for foundation-model research."""
