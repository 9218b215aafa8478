"""The tiny model that can chat."""

from tests.cli.conftest import tiny as tiny
