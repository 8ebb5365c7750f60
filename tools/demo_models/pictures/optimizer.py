"""Muon for the weights of convolutions and linear layers, Adam for the rest."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def orthogonalised(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with all of its singular values brought near 1, by five steps of Newton and Schulz."""
    a, b, c = 3.4445, -4.7750, 2.0315  # steep at 0, so that five steps are enough; ends between 0.7 and 1.2
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix) / (matrix.norm() + 1e-7)
    if min(x.shape) >= 64:  # below that, bfloat16 is slower on a CPU
        x = x.to(torch.bfloat16)
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return (x.T if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Muon: orthogonalised Nesterov momentum for weights of two or more dimensions, scaled like Adam's updates.

    Convolutions are treated as matrices of outputs by everything else. Vectors, and weights in `adam`, use Adam.
    """

    def __init__(
        self, params: Iterable[torch.nn.Parameter], adam: Iterable[torch.nn.Parameter] = (),
        momentum: float = 0.95, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 1e-3,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": 1.0, "momentum": momentum, "betas": betas, "weight_decay": weight_decay})
        self.adam = {id(param) for param in adam}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                param.mul_(1 - group["lr"] * group["weight_decay"])
                if param.ndim < 2 or id(param) in self.adam:
                    self._adam(param, group)
                else:
                    self._muon(param, group)

    def _muon(self, param: torch.Tensor, group: dict) -> None:
        state = self.state[param]
        if not state:
            state["trace"] = torch.zeros_like(param)
        trace = state["trace"].mul_(group["momentum"]).add_(param.grad)
        ahead = param.grad.add(trace, alpha=group["momentum"]).flatten(1)
        update = orthogonalised(ahead).view_as(param)
        param.add_(update, alpha=-group["lr"] * 0.2 * max(ahead.shape) ** 0.5)

    def _adam(self, param: torch.Tensor, group: dict) -> None:
        state = self.state[param]
        if not state:
            state |= {"mean": torch.zeros_like(param), "square": torch.zeros_like(param), "step": torch.zeros(())}
        low, high = group["betas"]
        state["step"] += 1
        n = state["step"].item()
        mean = state["mean"].lerp_(param.grad, 1 - low)
        square = state["square"].lerp_(param.grad.square(), 1 - high)
        scale = (square / (1 - high**n)).sqrt_().add_(1e-8)
        param.addcdiv_(mean, scale, value=-group["lr"] / (1 - low**n))
