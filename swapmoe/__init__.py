"""Run Mixture-of-Experts models larger than RAM with a patched llama.cpp."""

__version__ = "0.1.0"
