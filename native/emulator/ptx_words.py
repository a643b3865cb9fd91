"""Translates single PTX instructions that need no warp and no barrier to C++: loads, stores, arithmetic, registers.

What the table below lacks and include/ptx.h does not have, either, is reported where a thread comes by.
"""

from __future__ import annotations

import re

TYPES = {
    **{f"{kind}{bits}": f"std::uint{bits}_t" for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"std::int{bits}_t" for bits in (8, 16, 32, 64)},
    "f32": "float",
    "f64": "double",
}
# Where an access may be cached, which changes nothing here; of `volatile` and `relaxed` the emulator knows too little.
HINT = re.compile(r"nc|ca|cg|cs|lu|cv|wb|wt|weak|L[12]::\w+")
REGISTERS = {
    "laneid": "::emulator::lane()",
    "warpid": "::emulator::warp()",
    "smid": "0u",
    "clock": "std::uint32_t(::emulator::cycles())",
    "clock64": "::emulator::cycles()",
    "globaltimer": "::emulator::cycles()",
    **{f"lanemask_{which}": f"::emulator::lanes_{which}()" for which in ("eq", "lt", "le", "gt", "ge")},
    **{
        f"{short}.{axis}": f"::emulator::{name}_{axis}()"
        for short, name in (("tid", "threadIdx"), ("ctaid", "blockIdx"), ("ntid", "blockDim"), ("nctaid", "gridDim"))
        for axis in "xyz"
    },
}
# By the words before the type, rounding and range left out: of the operands behind the first one, as T.
ARITHMETIC = {
    "mov": "a",
    "add": "a + b",
    "sub": "a - b",
    "mul": "a * b",
    "mul.lo": "a * b",
    "mad.lo": "a * b + c",
    "fma": "std::fma(a, b, c)",
    "and": "a & b",
    "or": "a | b",
    "xor": "a ^ b",
    "not": "~a",
    "shl": "b < 8 * sizeof(T) ? a << b : 0",
    "shr": "a >> (b < 8 * sizeof(T) ? b : 8 * sizeof(T) - 1)",
    "min": "b < a ? b : a",
    "max": "a < b ? b : a",
    "neg": "-a",
    "abs": "a < 0 ? -a : a",
    "rcp": "1 / a",
    "sqrt": "std::sqrt(a)",
    "rsqrt": "1 / std::sqrt(a)",
    "ex2": "std::exp2(a)",
    "lg2": "std::log2(a)",
    "sin": "std::sin(a)",
    "cos": "std::cos(a)",
    "tanh": "std::tanh(a)",
    "popc": "T(__builtin_popcountll(a))",
    "clz": "T(a ? __builtin_clzll(a) - 64 + 8 * int(sizeof(T)) : 8 * int(sizeof(T)))",
}
OF_FLOATS = re.compile(r"rcp|sqrt|rsqrt|ex2|lg2|sin|cos|tanh|fma")
BY_BITS = re.compile(r"and|or|xor|not|shl|shr|popc|clz")
ROUNDING = re.compile(r"approx|full|rn|ftz")
ATOMIC = {
    "add": "Add",
    "min": "Min",
    "max": "Max",
    "and": "And",
    "or": "Or",
    "xor": "Xor",
    "exch": "Exch",
    "cas": "CAS",
}
WHOLE = {
    "membar.gl": "__threadfence()",
    "membar.sys": "__threadfence_system()",
    "membar.cta": "__threadfence_block()",
    "fence.acq_rel.gpu": "__threadfence()",
    "fence.sc.gpu": "__threadfence()",
    "fence.acq_rel.sys": "__threadfence_system()",
    "fence.acq_rel.cta": "__threadfence_block()",
    "bar.sync 0": "__syncthreads()",
    "barrier.sync 0": "__syncthreads()",
    "bar.warp.sync 0xffffffff": "__syncwarp()",
    "griddepcontrol.wait": "void()",
    "griddepcontrol.launch_dependents": "void()",
}


def instructions(code: str) -> list[str]:
    """Those of an asm statement, declarations and what is in braces around all of them included."""
    words = (re.sub(r"\s+", " ", part).strip() for part in re.split(r"\\[nt]|;", code))
    return [word for word in words if word.strip("{} ")]


def operand(text: str, given: list[str]) -> str | None:
    """C++ of an operand: %0, a number, a special register, or one of these in [ ], where a number may be added."""
    if match := re.fullmatch(r"\[(.+?)(?:\s*\+\s*(-?\d+))?\]", text):
        base = operand(match[1].strip(), given)
        return base and f"::emulator::behind({base}, {match[2] or 0})"
    if match := re.fullmatch(r"%(\d+)", text):
        return given[int(match[1])] if int(match[1]) < len(given) else None
    if text.startswith("%%"):
        return REGISTERS.get(text[2:])
    return text if re.fullmatch(r"-?(?:\d+|0x[0-9a-fA-F]+)", text) else None


def translated(line: str, given: list[str]) -> str | None:
    """C++ of an instruction with the operands of its asm statement; None where it is not known."""
    if line in WHOLE:
        return WHOLE[line]
    name, _, rest = line.partition(" ")
    operands = [operand(word.strip(" {}"), given) for word in rest.split(",")]
    if name in ("bar.sync", "barrier.sync", "bar.arrive") and len(operands) == 2 and None not in operands:
        return f"::emulator::named_barrier({operands[0]}, {operands[1]}, {str(name != 'bar.arrive').lower()})"
    first, *words = name.split(".")
    kind = TYPES.get(words[-1]) if words else None
    if kind is None or None in operands:
        return None
    values = [f"({word})" for word in operands if word]
    words = words[:-1]
    if first in ("ld", "st"):
        words = [word for word in words if not HINT.fullmatch(word)]
        wide = int(words.pop()[1:]) if words and words[-1] in ("v2", "v4") else 1
        if words not in ([], ["global"], ["shared"], ["const"]) or len(values) != wide + 1:
            return None
        at = values.pop() if first == "ld" else values.pop(0)
        at = f"::emulator::shared_memory_at{at}" if words == ["shared"] else f"::emulator::memory_at{at}"
        return f"::emulator::{'load' if first == 'ld' else 'store'}_words<{kind}>({at}, {', '.join(values)})"
    if first in ("red", "atom"):
        words = [word for word in words if word not in ("relaxed", "gpu", "cta", "sys")]
        if len(words) != 2 or words[0] != "global" or words[1] not in ATOMIC:
            return None
        to, *values = values if first == "atom" else ["", *values]
        into = f"static_cast<{kind}*>(const_cast<void*>(::emulator::memory_at{values[0]}))"
        numbers = ", ".join(f"::emulator::in_register<{kind}>{value}" for value in values[1:])
        call = f"atomic{ATOMIC[words[1]]}({into}, {numbers})"
        return f"::emulator::set_register({to}, {call})" if to else f"(void){call}"
    words = [word for word in words if not ROUNDING.fullmatch(word)]
    expression = ARITHMETIC.get(".".join([first, *words]))
    is_float = kind in ("float", "double")
    if not expression or (OF_FLOATS.fullmatch(first) and not is_float) or (BY_BITS.fullmatch(first) and is_float):
        return None
    names = re.findall(r"\b[abc]\b", expression)
    if len(values) != 1 + len(set(names)):
        return None
    kinds = ["T", "std::uint32_t" if first in ("shl", "shr") else "T", "T"]
    bound = "; ".join(
        f"const auto {name} = ::emulator::in_register<{kind_of}>{value}"
        for name, kind_of, value in zip("abc", kinds, values[1:], strict=False)
    )
    return f"[&] {{ using T = {kind}; {bound}; ::emulator::set_register({values[0]}, T({expression})); }}()"
