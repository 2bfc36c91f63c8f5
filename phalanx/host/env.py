"""The only module that reads or writes the environment (temporary)."""

import os


def read(name):
    return os.environ.get(name)


def set_default(name, value):
    return os.environ.setdefault(name, value)
