"""Python imports this module by its name when it starts."""

from importlib import import_module

import_module("constants_of_tests")
