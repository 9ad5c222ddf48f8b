"""What a program computes, written down to the bit, at once: it may end at any moment and in any way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

_file = -1
_modules: list[nn.Module] = []


def keep_in(path: Path) -> None:
    global _file
    _file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def keep(*values: object) -> None:
    """Note values of the program; of a module its parameters and buffers, with their gradients. Processes that it
    starts anew note nothing."""
    if _file < 0:
        return
    for value in values:
        if isinstance(value, nn.Module):
            _modules.append(value)
        os.write(_file, f"{_told(value)}\n".encode(errors="backslashreplace"))


def keep_gradients(module: nn.Module) -> None:
    """Note all gradients of a module in one line: a small error of one may be lost where the parameters take it up."""
    if _file >= 0:
        told = "\n".join(_of_tensor(parameter.grad) for parameter in module.parameters())
        os.write(_file, f"gradients {hashlib.sha256(told.encode()).hexdigest()[:16]}\n".encode())


def kept_modules() -> list[nn.Module]:
    return _modules


def _told(value: object) -> str:
    if isinstance(value, nn.Module):
        return "\n".join(_of_module(value))
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    return value.hex() if isinstance(value, float) else repr(value)


def _of_module(module: nn.Module) -> Iterator[str]:
    for name, parameter in module.named_parameters():
        yield f"{name} {_of_tensor(parameter)} gradient {_of_tensor(parameter.grad)}"
    for name, buffer in module.named_buffers():
        yield f"{name} {_of_tensor(buffer)}"


def _of_tensor(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "None"
    with torch.no_grad():
        plain = tensor.detach()
        plain = plain.to_local() if hasattr(plain, "to_local") else plain
        plain = plain.dequantize() if plain.is_quantized else plain.to_dense() if plain.is_sparse else plain
        plain = plain.as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous()
        content = bytes(plain.flatten().view(torch.uint8).numpy()) if plain.numel() else b""
    digest = hashlib.sha256(content).hexdigest()[:16]
    shown = f" {float(plain):.9g}" if plain.numel() == 1 and not plain.is_complex() else ""
    return f"{tensor.dtype} {tuple(tensor.shape)} {digest}{shown}"
