# SPDX-License-Identifier: Apache-2.0
"""Imports the installed package, starts the demo and prints the entropies of a generation."""

import importlib
import pkgutil

import tokentap
from tokentap import notebook

# need a trainer, an experiment tracker or another package
OPTIONAL = ("mlflow", "pytest_plugin", "strands", "tensorboard", "transfer_queue", "tunix", "verl", "wandb")

for module in pkgutil.iter_modules(tokentap.__path__):
    if module.name not in OPTIONAL:
        importlib.import_module(f"tokentap.{module.name}")

with tokentap.demo() as server:
    sampling = {"max_new_tokens": 8, "ignore_eos": True}
    made = server.client.generate("The lamp", session="first", sampling_params=sampling)
    path = server.client.trajectories("first")["trajectories"][0]
    assert path["loss_mask"].count(1) == len(made.output_ids) == 8, path
    assert "<span" in notebook.show(path)._repr_html_()
assert all(nats is not None and nats >= 0 for nats in made.entropy), made.entropy
assert any(nats > 0 for nats in made.entropy), made.entropy
print("entropy, nats:", *(f"{nats:.3f}" for nats in made.entropy))
