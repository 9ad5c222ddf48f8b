"""What autograd can be asked for."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
import torch.distributed as dist
from torch import nn
from torch.autograd.functional import hessian, jacobian
from torch.autograd.graph import Node, allow_mutation_on_saved_tensors, register_multi_grad_hook, save_on_cpu
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.hostile.kept import keep
from tests.hostile.registry import program
from tests.hostile.training import STEPS, WIDTH, batch, ddp, join, keep_error, loss_of, network, sgd, steps, train


@program(ranks=2)
def stock_ddp() -> None:
    """Trains as everybody does."""
    train(ddp())


@program(ranks=2)
def retain_graph() -> None:
    """Runs backward twice through one graph."""
    model = ddp()
    optimizer = sgd(model)
    for _ in range(STEPS):
        loss = loss_of(model)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        keep(loss)
    keep(model)


@program(ranks=2)
def double_backward() -> None:
    """Penalises gradients: a backward through a backward."""
    model = ddp()
    optimizer = sgd(model)
    for _ in range(STEPS):
        inputs = batch().requires_grad_()
        (gradient,) = torch.autograd.grad(model.module(inputs).sum(), inputs, create_graph=True)
        loss = loss_of(model) + gradient.pow(2).mean()
        loss.backward(create_graph=False)
        optimizer.step()
        optimizer.zero_grad()
        keep(loss)
    keep(model)


@program(ranks=2)
def autograd_grad() -> None:
    """Takes gradients without a backward, and reduces them by hand."""
    join()
    model = network()
    for _ in range(STEPS):
        loss = loss_of(model)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                dist.all_reduce(gradient)
                parameter -= 0.1 * gradient
        keep(loss)
    keep(model)


@program()
def functional_derivatives() -> None:
    """Jacobian, Hessian and forward-mode derivatives."""
    model = network()
    keep(jacobian(model, batch()))
    keep(hessian(lambda inputs: model(inputs).pow(2).sum(), batch(1)))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(batch(), torch.ones(4, WIDTH))
        keep(*forward_ad.unpack_dual(model(dual)))
    train(model)


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.body, self.reentrant = network(), reentrant

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inputs = inputs.requires_grad_()
        hidden = checkpoint(self.body[:3], inputs, use_reentrant=self.reentrant)
        return checkpoint(self.body[3:], hidden, use_reentrant=self.reentrant)  # type: ignore[no-any-return]


@program(ranks=2)
def checkpoint_reentrant() -> None:
    """Computes again in backward, through a backward of its own."""
    train(ddp(Checkpointed(reentrant=True), static_graph=True))


@program(ranks=2)
def checkpoint_not_reentrant() -> None:
    """Computes again in backward, by hooks on saved tensors."""
    train(ddp(Checkpointed(reentrant=False)))


@program()
def checkpoint_in_sequence() -> None:
    """Checkpoints a sequence with random numbers in it, within a checkpoint."""
    body = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)) for _ in range(4)))
    for _ in range(STEPS):
        inner = lambda x: checkpoint_sequential(body, 2, x, use_reentrant=False)  # noqa: E731
        loss = checkpoint(inner, batch().requires_grad_(), use_reentrant=False).sum()
        loss.backward()
        keep(loss)
    keep(body)


@program(ranks=2)
def saved_tensors_hooks() -> None:
    """Packs what is saved for backward."""
    model = ddp()
    optimizer = sgd(model)
    for _ in range(STEPS):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.double(), lambda x: x.float()):
            loss = loss_of(model)
        with save_on_cpu():
            other = loss_of(model)
        (loss + other).backward()
        optimizer.step()
        keep(loss)
    keep(model)


@program()
def mutated_saved_tensors() -> None:
    """Changes in place what is saved for backward."""
    with allow_mutation_on_saved_tensors():
        inputs = batch().requires_grad_()
        outputs = inputs.clone()
        squared = outputs**2
        outputs.sin_()
        (squared + outputs).sum().backward()
        keep(inputs.grad)
    train()


@program(ranks=2)
def anomaly_detection() -> None:
    """Looks for NaN in each backward, and finds one."""
    with torch.autograd.set_detect_anomaly(True):
        model = train(ddp())
        keep_error(lambda: (torch.zeros(1, requires_grad=True) / 0.0 * 0.0).sqrt().sum().backward())
    keep(model)


@program()
def grad_switched() -> None:
    """Switches gradients off and on, and infers in between."""
    model = network()
    for step in range(STEPS):
        torch.set_grad_enabled(step % 2 == 0)
        keep(loss_of(model).requires_grad)
        with torch.inference_mode():
            keep(loss_of(model))
        with torch.enable_grad():
            loss_of(model).backward()
    torch.set_grad_enabled(True)
    train(model)


class Averaged(torch.autograd.Function):
    """Communicates in both directions."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        out = inputs.clone()
        dist.all_reduce(out)
        return out / 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        out = gradients[0].clone()
        dist.all_reduce(out)
        return out / 2


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return Averaged.apply(self.body(inputs))  # type: ignore[no-any-return, no-untyped-call]


@program(ranks=2)
def communicating_function() -> None:
    """Communicates in forward and in backward, within what DDP reduces."""
    train(ddp(Mixed()))


@program(ranks=2)
def unused_parameters() -> None:
    """Uses another half of the model on each rank and step."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.halves, self.calls = nn.ModuleList([network(), network()]), join()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.halves[self.calls % 2](inputs)  # type: ignore[no-any-return]

    train(ddp(Halves(), find_unused_parameters=True))


@program(ranks=2)
def unused_parameters_untold() -> None:
    """Leaves parameters out without telling DDP, which refuses the next forward."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = network(), network()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.used(inputs)  # type: ignore[no-any-return]

    model = ddp(Half())
    keep_error(train, model)
    keep(model)


@program(ranks=2)
def static_graph() -> None:
    """Promises DDP that its graph stays the same."""
    train(ddp(static_graph=True))


@program(ranks=2)
def accumulated_gradients() -> None:
    """Synchronises every third backward."""
    model = ddp()
    optimizer = sgd(model)
    for _ in range(STEPS):
        for micro in range(3):
            if micro < 2:
                with model.no_sync():
                    loss_of(model).backward()
            else:
                loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    keep(model)


@program(ranks=2)
def gradient_views() -> None:
    """Has its gradients in DDP's buckets, and looks at where they lie."""
    model = ddp(gradient_as_bucket_view=True)
    for _ in steps(model):
        keep(all(parameter.grad._base is not None for parameter in model.parameters()))


@program(ranks=2)
def sparse_gradients() -> None:
    """Trains an embedding with sparse gradients."""

    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.body = nn.Embedding(10, WIDTH, sparse=True), network()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.body(self.table(inputs.abs().long().clamp(max=9)).mean(1))  # type: ignore[no-any-return]

    train(ddp(Embedded()), None, 3)


@program(ranks=2)
def complex_and_double() -> None:
    """Trains parameters of several types."""

    class Types(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.of_complex = nn.Parameter(torch.randn(WIDTH, dtype=torch.complex64))
            self.of_double = nn.Parameter(torch.randn(WIDTH, dtype=torch.float64))
            self.of_half = nn.Parameter(torch.randn(WIDTH, dtype=torch.bfloat16))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return (inputs * self.of_complex).abs() * self.of_double * self.of_half

    train(ddp(Types()))


@program(ranks=2)
def hooks_that_change_gradients() -> None:
    """Hangs hooks on tensors, parameters, nodes and groups of tensors, which change what passes."""
    model = ddp()
    seen: list[str] = []
    first, *_, last = model.parameters()
    first.register_hook(lambda gradient: gradient * 2)
    last.register_post_accumulate_grad_hook(lambda parameter: seen.append(str(tuple(parameter.shape))))
    register_multi_grad_hook([first, last], lambda gradients: seen.append(str(len(gradients))))
    for _ in range(STEPS):
        loss = loss_of(model)
        assert isinstance(loss.grad_fn, Node)
        loss.grad_fn.register_prehook(lambda gradients: (gradients[0] * 3,))
        loss.grad_fn.register_hook(lambda inputs, outputs: seen.append(f"{len(inputs)} {len(outputs)}"))
        loss.backward()
        keep(loss)
    keep(model, seen)


@program(ranks=2)
def hook_that_raises_in_backward() -> None:
    """Raises from a tensor's hook; both ranks go on with a new model."""
    model = ddp()
    train(model, count=2)

    def refuse(gradient: torch.Tensor) -> None:
        raise ValueError("not this gradient")

    hidden = model(batch())
    hidden.register_hook(refuse)
    keep_error(hidden.sum().backward)
    train(ddp())


@program()
def hooks_that_raise() -> None:
    """Raises from hooks of modules, parameters and optimizers, and catches all of it."""
    model = network()
    optimizer = sgd(model)

    def refuse(*_: object) -> None:
        raise LookupError("no")

    places = [
        model.register_forward_pre_hook,
        model.register_forward_hook,
        model[0].register_full_backward_hook,
        model[0].register_full_backward_pre_hook,
        model[0].weight.register_hook,
        model[2].weight.register_post_accumulate_grad_hook,
        optimizer.register_step_pre_hook,
        optimizer.register_step_post_hook,
    ]
    for place in places:
        handle = place(refuse)
        keep_error(train, model, optimizer, 2)
        handle.remove()
        train(model, optimizer, 2)


@program()
def backward_of_several() -> None:
    """Calls `torch.autograd.backward` with several roots, gradients and inputs, by position and by name."""
    model = network()
    for _ in range(STEPS):
        first, second = model(batch()), model(batch())
        torch.autograd.backward([first, second], [torch.ones_like(first), torch.ones_like(second)])
        out = model(batch())
        torch.autograd.backward(tensors=(out,), grad_tensors=(torch.ones_like(out),), inputs=list(model.parameters()))
        model(batch()).sum().backward(inputs=[model[0].weight])
    keep(model)
    keep_error(torch.autograd.backward, [])
    keep_error(torch.autograd.backward, model(batch()))
    keep_error(torch.autograd.backward)


@program()
def backward_within_forward_and_backward() -> None:
    """Trains a small model inside the forward of another, and inside its backward."""
    inner = network()

    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                train(inner, None, 1)
            return inputs * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                train(inner, None, 1)
            return gradients[0] * 2

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return Inner.apply(self.body(inputs))  # type: ignore[no-any-return, no-untyped-call]

    train(Outer())
    keep(inner)


@program(ranks=2)
def backward_in_another_thread() -> None:
    """Runs forward in the main thread and backward in one made for it."""
    model = ddp()
    optimizer = sgd(model)
    for _ in range(STEPS):
        loss = loss_of(model)
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        optimizer.step()
        keep(loss)
    keep(model)


@program(ranks=2)
def callback_at_the_end_of_backward() -> None:
    """Queues a callback of the engine from a hook, as reducers do."""
    model = ddp()
    called: list[int] = []

    def queue(_: torch.Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: called.append(len(called)))

    next(model.parameters()).register_post_accumulate_grad_hook(queue)
    train(model)
    keep(called)


@program(ranks=2)
def two_models_in_one_loss() -> None:
    """Adds the losses of two DDP modules before one backward."""
    first, second = ddp(), ddp()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for _ in range(STEPS):
        loss = loss_of(first) + loss_of(second)
        loss.backward()
        optimizer.step()
        keep(loss)
    keep(first, second)


@program(ranks=2)
def forward_without_backward() -> None:
    """Runs forwards whose backward never comes, and one that it drops in the middle."""
    model = ddp()
    for _ in steps(model):
        model.eval()
        with torch.no_grad():
            keep(loss_of(model))
        model.train()
        dropped = loss_of(model.module)
        del dropped


@program(ranks=2)
def ddp_inside_a_module() -> None:
    """Holds DDP in the middle of a model, beside parts that are not reduced."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.body = nn.Linear(WIDTH, WIDTH), ddp()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.body(self.head(inputs))  # type: ignore[no-any-return]

    model = Outer()
    train(model)
    keep([isinstance(module, DistributedDataParallel) for module in model.modules()])
