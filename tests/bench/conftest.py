"""A connection to this machine, as the engine's tests have it."""

from tests.engine.conftest import local as local
