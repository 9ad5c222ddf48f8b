"""What updates parameters, and how."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from tests.hostile.kept import keep
from tests.hostile.registry import program
from tests.hostile.training import STEPS, batch, ddp, keep_error, loss_of, network, sgd, steps, train


@program(ranks=2)
def every_optimizer() -> None:
    """Trains with each optimizer of torch."""
    for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"):
        model = ddp()
        train(model, getattr(torch.optim, name)(model.parameters()), 2)


@program(ranks=2)
def lbfgs() -> None:
    """Runs several forwards and backwards in each update."""
    model = ddp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    torch.manual_seed(1)  # it runs as many forwards as the loss asks for: on all ranks the same
    data = batch()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()
        loss.backward()
        return loss  # type: ignore[no-any-return]

    for _ in range(STEPS):
        keep(optimizer.step(closure))
    keep(model)


class Around(Optimizer):
    """Holds another optimizer, whose step is a part of its own."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner, self.updates = inner, 0
        super().__init__(inner.param_groups, {})

    def step(self, closure: Any = None) -> Any:
        self.updates += 1
        return self.inner.step(closure)


@program(ranks=2)
def nested_optimizers() -> None:
    """Puts optimizers into optimizers, and updates from a hook in backward."""
    model = ddp()
    train(model, Around(Around(sgd(model))))
    by_parameter = {parameter: SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        by_parameter[parameter].step()  # type: ignore[index]

    handles = [parameter.register_post_accumulate_grad_hook(update) for parameter in model.parameters()]
    for _ in range(STEPS):
        loss_of(model).backward()
    for handle in handles:
        handle.remove()
    keep(model)


@program()
def optimizers_that_are_none() -> None:
    """Updates by a partial, by a class without torch's base, and by hand."""
    model = network()
    make = functools.partial(SGD, lr=0.1)
    train(model, make(model.parameters()))

    class Plain:
        def step(self) -> None:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad

        def zero_grad(self) -> None:
            for parameter in model.parameters():
                parameter.grad = None

    train(model, Plain())  # type: ignore[arg-type]
    optimizer = sgd(model)
    step = functools.partial(optimizer.step)
    for _ in range(STEPS):
        loss_of(model).backward()
        step()
    optimizer.step = lambda closure=None: keep("own step")  # type: ignore[method-assign]
    train(model, optimizer)


@program()
def closures_that_raise() -> None:
    """Raises out of an optimizer's closure, and trains on with the same one."""
    model = network()
    optimizer = sgd(model)

    def closure() -> torch.Tensor:
        loss_of(model).backward()
        raise ZeroDivisionError("in the closure")

    def ending() -> torch.Tensor:
        raise SystemExit(3)

    for one in (closure, ending):
        for _ in range(3):
            keep_error(optimizer.step, one)
            train(model, optimizer, 2)


@program()
def copied_optimizers() -> None:
    """Copies and pickles optimizers on their way, and loads their states."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in steps(model, optimizer):
        copied = copy.deepcopy(optimizer)
        keep(len(pickle.loads(pickle.dumps(optimizer)).state))
    for parameter in copied.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    copied.step()
    keep(*copied.param_groups[0]["params"])
    other = AdamW(model.parameters())
    other.load_state_dict(optimizer.state_dict())
    train(model, other)


@program()
def hooks_of_optimizers() -> None:
    """Registers every hook that optimizers have, on one and on all, inside the trace."""
    seen: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda optimizer, *rest: seen.append(f"{name} {type(optimizer).__name__} {len(rest)}")

    model = network()
    optimizer = sgd(model)
    handles = [
        register_optimizer_step_pre_hook(note("all before")),
        register_optimizer_step_post_hook(note("all after")),
        optimizer.register_step_pre_hook(note("before")),
        optimizer.register_step_post_hook(note("after")),
        optimizer.register_state_dict_pre_hook(note("state")),
    ]
    train(model, optimizer)
    optimizer.state_dict()
    for handle in handles:
        handle.remove()
    train(model, optimizer)
    keep(seen)


@program()
def hooks_that_change_arguments() -> None:
    """Changes the arguments of each update in a hook."""
    model = network()
    optimizer = sgd(model)
    optimizer.register_step_pre_hook(lambda one, args, kwargs: (args, {"closure": lambda: loss_of(model)}))
    for _ in range(STEPS):
        loss_of(model).backward()
        keep(optimizer.step())
    keep(model)


@program()
def schedulers() -> None:
    """Schedules the rate in every way, and wraps `step` as schedulers do."""
    kinds: list[Callable[[Optimizer], Any]] = [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 1),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o, [torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)], [2]
        ),
    ]
    for make in kinds:
        model = network()
        optimizer = sgd(model)
        schedule = make(optimizer)
        schedule.step()  # before the first update: torch warns
        for _ in steps(model, optimizer):
            schedule.step()
        keep(optimizer.param_groups[0]["lr"], optimizer._opt_called)  # type: ignore[attr-defined]


@program(ranks=2)
def mixed_precision() -> None:
    """Trains under autocast with a scaler, which skips an update."""
    model = ddp()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model)
        if step == 2:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        keep(scaler.step(optimizer))
        scaler.update()
        keep(loss, scaler.get_scale())
    keep(model)
    keep_error(scaler.step, optimizer)


@program()
def scaler_of_its_own() -> None:
    """Subclasses the scaler, overrides its `step`, and calls torch's by the class."""

    class Own(torch.amp.GradScaler):
        def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            keep("own")
            return torch.amp.GradScaler.step(self, optimizer, *args, **kwargs)

    for scaler in (Own("cpu"), torch.amp.GradScaler("cpu", enabled=False)):
        model = network()
        optimizer = sgd(model)
        for _ in range(STEPS):
            scaler.scale(loss_of(model)).backward()
            scaler.step(optimizer=optimizer) if scaler.is_enabled() else scaler.step(optimizer)
            scaler.update()
        keep(model)
        keep_error(scaler.step)


@program(ranks=2)
def zero_redundancy() -> None:
    """Shards the states of an optimizer over the ranks."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = ddp()
    train(model, ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=0.1))


@program(ranks=2)
def post_local_sgd() -> None:
    """Averages parameters now and then, with a communication hook that stays on this rank."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    model = ddp()
    model.register_comm_hook(
        PostLocalSGDState(process_group=None, subgroup=torch.distributed.new_group([0, 1]), start_localSGD_iter=2),
        post_localSGD_hook,
    )
    train(model, PostLocalSGDOptimizer(optim=sgd(model), averager=PeriodicModelAverager(period=2, warmup_steps=2)))


@program()
def several_threads_train() -> None:
    """Trains a model of its own in each of three threads."""
    results: dict[int, nn.Module] = {}
    turn = threading.Lock()

    models = [network(layers=number) for number in range(4)]

    def work(number: int) -> None:
        model = models[number]
        generator = torch.Generator().manual_seed(number)
        optimizer = sgd(model)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(4, 8, generator=generator)).sum().backward()
            optimizer.step()
        with turn:
            results[number] = model

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keep(*(results[number] for number in sorted(results)))


@program()
def defaults_changed() -> None:
    """Changes torch's defaults on the way: dtype, device, deterministic algorithms, threads, precision."""
    train()
    torch.set_default_dtype(torch.float64)
    train()
    torch.set_default_device("cpu")
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("medium")
    torch.set_num_threads(2)
    train()
    torch.set_flush_denormal(True)
    torch.set_printoptions(precision=2)
    keep(str(torch.randn(3)))
    torch.set_default_device("meta")
    keep(network()(torch.empty(2, 8)).shape)
    torch.set_default_device(None)
    train()


@program(ranks=2)
def another_thread_trains() -> None:
    """Enters the trace in the main thread and trains in another."""
    thread = threading.Thread(target=lambda: train(ddp()))
    thread.start()
    thread.join()
