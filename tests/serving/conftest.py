"""Small deployments that every serving test can afford."""

from __future__ import annotations

import dataclasses

import pytest

from tracelens.backends import System
from tracelens.predict.serving.costs import StepCost
from tracelens.predict.serving.deployment import Deployment, Engine, Parallelism
from tracelens.predict.workload import ModelConfig


@pytest.fixture(scope="session")
def cost_of():
    """The step cost of a deployment, made once: tables are shared between tests."""
    known: dict[tuple, StepCost] = {}

    def made(model="llama3.1-8b", system="dgx-h100", engine=None, **fields) -> StepCost:
        engine = engine or Engine()
        parallel = fields.pop("parallelism", Parallelism())
        key = (model, system, engine, parallel, tuple(sorted(fields.items(), key=str)))
        if key not in known:
            deployment = Deployment(
                model=ModelConfig.load(model), system=System.load(system), engine=engine, parallelism=parallel
            )
            known[key] = StepCost(dataclasses.replace(deployment, **fields))
        return known[key]

    return made
