"""What turns a model into something else: compilers, scripts, exported programs, traced graphs."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.fx
from torch import nn

from tests.hostile.kept import keep
from tests.hostile.registry import program
from tests.hostile.training import WIDTH, CallsSuper, batch, ddp, keep_error, loss_of, network, sgd, train

COMPILER = (
    "torch._dynamo.testing",
    "torch._functorch.aot_autograd",
    "torch.export",
    "torch._inductor.config",
    "torch._dynamo.backends.debugging",
    "torch._inductor.compile_fx",
)


@program(imports=COMPILER)
def compiled_eager() -> None:
    """Compiles a model with the backend that changes nothing, and counts its graphs."""
    import torch._dynamo.testing

    counter = torch._dynamo.testing.CompileCounter()
    torch._dynamo.reset()
    model = network()
    train(torch.compile(model, backend=counter))  # type: ignore[arg-type]
    train(torch.compile(model, backend="eager"), sgd(model))  # type: ignore[arg-type]
    keep(counter.frame_count, counter.op_count)
    keep(sorted(torch._dynamo.utils.counters["graph_break"].items()))


@program(ranks=2, imports=COMPILER)
def compiled_ddp() -> None:
    """Compiles DDP, whose buckets break the graph, and keeps why. How often depends on which frames of the standard
    library were compiled before."""
    model = ddp(bucket_cap_mb=1)
    train(torch.compile(model, backend="aot_eager"))  # type: ignore[arg-type]
    keep(sorted(torch._dynamo.utils.counters["graph_break"]))
    keep(torch._dynamo.utils.counters["stats"])


@program(imports=COMPILER)
def compiled_in_parts() -> None:
    """Compiles methods, functions with breaks in them, whole steps, and a module in place."""

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = self.body(inputs)
            torch._dynamo.graph_break()
            return hidden * 2  # type: ignore[no-any-return]

    model = Parts()
    model.compile(backend="aot_eager")
    train(model)
    inner = Parts()
    inner.body.compile(backend="eager")
    train(inner)
    optimizer = sgd(model)

    @torch.compile(backend="eager")
    def step(inputs: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model.body(inputs).sum()
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    keep(step(batch()), step(batch()))

    @torch.compiler.disable
    def never(inputs: torch.Tensor) -> torch.Tensor:
        return model.body(inputs)  # type: ignore[no-any-return]

    keep(torch.compile(never, backend="eager")(batch()))
    keep(torch.compiler.is_compiling(), torch._dynamo.utils.counters["stats"])
    keep_error(torch.compile(Parts(), backend="eager", fullgraph=True), batch())


@program(imports=COMPILER)
def compiled_before_the_trace(trace: Any) -> None:
    """Compiles before the trace and inside, and counts how often it is compiled again inside and after."""
    import torch._dynamo.testing

    counter = torch._dynamo.testing.CompileCounter()
    models: list[Any] = [torch.compile(kind(), backend=counter) for kind in (network, CallsSuper, network, CallsSuper)]
    counts: list[int] = []

    def train_all(models: list[Any]) -> None:
        for model in models:
            train(model, sgd(model), 2)
            counts.append(counter.frame_count)

    train_all(models[:2])
    with trace():
        train_all(models)
    train_all(models)
    keep(counts)


@program(imports=COMPILER)
def compiled_autograd() -> None:
    """Compiles the backward as well."""
    model = network()
    optimizer = sgd(model)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        train(model, optimizer, 2)
    train(model, optimizer)


@program()
def scripted() -> None:
    """Scripts, traces, freezes and saves modules, inside the trace and in forwards."""
    import io

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, it says
        model = network()
        scripted = torch.jit.script(model)
        train(scripted)
        traced = torch.jit.trace(network(), batch())
        train(traced)
        keep(str(scripted.graph).count("\n"), str(traced.graph).count("aten::"))
        file = io.BytesIO()
        torch.jit.save(scripted, file)
        file.seek(0)
        loaded = torch.jit.load(file)
        keep(loaded(batch()))
        keep(torch.jit.freeze(scripted.eval())(batch()))

        @torch.jit.script
        def function(inputs: torch.Tensor) -> torch.Tensor:
            return inputs * 2

        class Holds(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = torch.jit.script(network())

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return function(self.inner(inputs))  # type: ignore[no-any-return]

        train(Holds())
        keep(torch.jit.trace_module(network(), {"forward": batch()})(batch()))


@program()
def graphs_of_fx() -> None:
    """Traces models symbolically, rewrites them, and runs them by an interpreter."""
    model = network()
    graph = torch.fx.symbolic_trace(model)
    keep(str(graph.graph), graph.code)
    train(graph)

    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, module: nn.Module, name: str) -> bool:
            return isinstance(module, nn.Linear)

        def call_module(self, module: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
            keep(type(module).__name__)
            return super().call_module(module, forward, args, kwargs)

    keep(str(Tracer().trace(network())))
    for node in graph.graph.nodes:
        if node.op == "call_module" and isinstance(graph.get_submodule(node.target), nn.Tanh):
            node.target, node.op = torch.relu, "call_function"
    graph.recompile()
    train(graph)
    keep(torch.fx.Interpreter(graph).run(batch()))

    class Untraceable(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs if inputs.sum() > 0 else -inputs

    keep_error(torch.fx.symbolic_trace, Untraceable())
    train(model)

    from torch.fx.experimental.proxy_tensor import make_fx

    keep(make_fx(model)(batch()).code.count("aten"))


@program(imports=COMPILER)
def exported() -> None:
    """Exports a model, strictly and not, and trains what it gets back."""
    model = network()
    for strict in (False, True):
        result = torch.export.export(model, (batch(),), strict=strict)
        keep(str(result.graph).count("\n"), sorted(result.state_dict))
        train(result.module())
    train(torch.export.unflatten(result))


@program()
def overridden() -> None:
    """Asks torch.overrides about its functions, and for tensors that override them."""
    from torch.overrides import get_overridable_functions, has_torch_function, is_tensor_method_or_property

    keep(len(get_overridable_functions()), has_torch_function((batch(),)))
    keep(is_tensor_method_or_property(torch.Tensor.add), torch.overrides.resolve_name(torch.Tensor.backward))
    keep(torch.autograd.backward in set().union(*map(set, get_overridable_functions().values())))
    train()


@program()
def quantized() -> None:
    """Quantises a model for inference, and prepares one for training."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dynamic = torch.ao.quantization.quantize_dynamic(network(), {nn.Linear})
        keep(dynamic(batch()))
        model = nn.Sequential(torch.ao.quantization.QuantStub(), nn.Linear(WIDTH, 2))
        model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")  # type: ignore[assignment]
        prepared = torch.ao.quantization.prepare_qat(model.train())
        loss_of(prepared).backward()
        train(prepared)
