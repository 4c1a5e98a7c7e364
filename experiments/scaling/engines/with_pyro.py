"""Pyro on PyTorch, its JIT switched on, as in the source."""

import math
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import NUTS, SVI, JitTrace_ELBO, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.optim import Adam
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from experiments.engines import fresh_pyro
from experiments.scaling.engines import Session, Work
from experiments.scaling.problem import INIT_SCALE, LEARNING_RATE, Problem, Settings, forward


def mcmc(problem: Problem, settings: Settings) -> Session:
    """NUTS with Pyro's own window adaptation; further runs go on with the chain."""
    fresh_pyro(1)
    model, start = _model(problem)
    data = (torch.tensor(problem.x), torch.tensor(problem.y))
    kernel = CountingNUTS(
        model, jit_compile=True, ignore_jit_warnings=True, init_strategy=start,
        max_tree_depth=settings.doublings,
    )  # fmt: skip
    kernel.setup(settings.warmup, *data)
    params = kernel.initial_params

    def transitions(n: int) -> list[int]:
        nonlocal params
        counts = []
        for _ in range(n):
            before = kernel.gradients
            params = kernel.sample(params)
            counts.append(kernel.gradients - before)
        return counts

    warm = transitions(settings.warmup)
    plain = NUTS(model, init_strategy=start)
    plain.setup(0, *data)
    work = _counted(lambda: pyro.ops.integrator.potential_grad(plain.potential_fn, params))
    return Session(work, lambda: transitions(settings.samples), warm, float(kernel.step_size))


def svi(problem: Problem, settings: Settings) -> Session:
    """A mean field by Adam; an epoch is a Python loop; further runs go on with the training.

    The KL term is sampled: with it in closed form, Pyro 1.9 traces its JIT anew in every step.
    """
    fresh_pyro(1)
    x, y = torch.tensor(problem.x), torch.tensor(problem.y)
    steps = len(y) // settings.batch
    model, start = _model(problem)
    guide = AutoNormal(model, init_loc_fn=start, init_scale=INIT_SCALE)
    optimizer = Adam({"lr": LEARNING_RATE})
    plain = SVI(model, guide, optimizer, Trace_ELBO())
    batch = (x[: settings.batch], y[: settings.batch])
    plain.step(*batch)  # sets the guide up
    work = _counted(lambda: plain.step(*batch))
    inference = SVI(model, guide, optimizer, JitTrace_ELBO(ignore_jit_warnings=True))

    def run() -> list[int]:
        for _ in range(settings.epochs):
            order = torch.randperm(len(y))[: steps * settings.batch]
            for rows in order.reshape(steps, settings.batch):
                inference.step(x[rows], y[rows])
        return [steps] * settings.epochs

    return Session(work, run)


class CountingNUTS(NUTS):
    """NUTS that knows how many gradients its trees took."""

    gradients = 0

    def _build_basetree(self, *args: Any) -> Any:
        self.gradients += 1
        return super()._build_basetree(*args)


def _model(problem: Problem) -> tuple[Any, Any]:
    sites = {name: (torch.tensor(v), scale) for name, (v, scale) in problem.sites.items()}
    examples = len(problem.y)

    def model(x: Any, y: Any) -> None:
        values = {}
        for name, (value, scale) in sites.items():
            prior = dist.Normal(0.0, scale).expand(value.shape).to_event(value.dim())
            values[name] = pyro.sample(name, prior)
        mean, log_var = forward(values, x, torch.relu)
        with pyro.plate("data", examples, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(mean, torch.exp(log_var / 2)), obs=y)

    return model, init_to_value(values={name: value for name, (value, _) in sites.items()})


class _Operations(TorchDispatchMode):
    """Counts as XLA does, without its fusion: elements of results, bytes in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.is_view:
            return out
        made, read = _tensors(out), _tensors((args, kwargs))
        self.bytes += sum(t.numel() * t.element_size() for t in made + read)
        if torch.Tag.pointwise in func.tags:
            self.elements += sum(t.numel() for t in made)
        elif func.overloadpacket in (torch.ops.aten.sum, torch.ops.aten.mean):
            self.elements += sum(t.numel() for t in read)
        return out


def _tensors(tree: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _counted(call: Any) -> Work:
    with FlopCounterMode(display=False) as products:
        call()
    with _Operations() as others:
        call()
    total = products.get_total_flops()
    return Work(float(total + others.elements), float(others.bytes), math.ceil(total / 2), None)
