"""Warnings are errors, in every test and on every rank, but for the same few."""

from tests.rank import ALLOWED_WARNINGS


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error")
    for message, category in ALLOWED_WARNINGS:
        config.addinivalue_line("filterwarnings", f"ignore:{message}:{category.__name__}")
