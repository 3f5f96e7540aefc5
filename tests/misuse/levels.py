"""The surrounding feature level."""

from typing import Any

import jquant

from .call import Argument, Call
from .kinds import Level


def calls() -> list[Call]:
    def inside(level: Any) -> Any:
        with jquant.feature_level(level) as entered:
            return entered

    levels = Argument("6_2", Level("1_0", optional=False), "feature_level level")
    return [Call("feature_level", {"level": levels}, lambda level: jquant.FeatureLevel(level), inside)]
