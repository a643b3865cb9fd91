"""Turns .cu and .cuh files into C++ that g++ compiles against native/emulator/include; nothing but CUDA's own syntax.

    k<<<grid, block>>>(a, b)           ::emulator::run("k", [=] { k(a, b); }, grid, block), behind the arguments' names
    __shared__ float tile[2][3];       a reference to a variable of the thread block, by that name
    extern __shared__ float4 all[];    a pointer to the block's dynamic shared memory
    __device__ int count = 0;          a reference to a variable between guards, of which the emulator knows
    threadIdx.x                        ::emulator::threadIdx_x()
    #pragma unroll                     #pragma GCC unroll, so that arrays become registers as they do under nvcc
    reinterpret_cast<const void*>(kernel)  ::emulator::kernel_address(kernel), for cudaLaunchKernelExC
    asm("a.b.c ..." : "=r"(x) : ...);  ::emulator::ptx_a_b_c(x, ...), or a report where ptx.h has no such function

Lines keep their numbers, and #line keeps the name of the file. Usage: rewrite.py FROM TO FILE..., all FILEs below FROM.
"""

import re
import sys
from pathlib import Path

import ptx_words

COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
EXTERN_SHARED = re.compile(r"extern\s+__shared__\s+((?:__align__\([^)]*\)\s*)?)([\w:]+(?:\s+[\w:]+)*?)\s+(\w+)\[\];")
SHARED = re.compile(r"(?:\bstatic\s+)?(\bvolatile\s+)?__shared__\s+((?:(?:union|struct)\s*\{[^{}]*\})?[^;={}]*);")
DECLARATOR = re.compile(r"(.*?)(\w+)\s*((?:\[.*\])?)\s*", re.DOTALL)
UNROLL = re.compile(r"^([ \t]*)#pragma unroll\b[ \t]*(\d*)[^\n]*", re.MULTILINE)
# A component is one call without a temporary: g++ 12 evaluates an index of `(c ? a : b)[index]` in one branch only if a
# temporary object is in it.
BUILT_IN = re.compile(r"(?<![.\w>])(threadIdx|blockIdx|blockDim|gridDim)\b(?:\.([xyz])\b)?")
WHOLE = {"threadIdx": "thread_index", "blockIdx": "block_index", "blockDim": "block_size", "gridDim": "grid_size"}
VARIABLE = re.compile(r"(?<![\w\]])(?:(?:static|inline|const|volatile)\s+)*\b(__device__|__constant__|__managed__)\b")
NO_TYPE = re.compile(r"\b(?:__device__|__constant__|__managed__|static|inline)\b\s*")
ATTRIBUTE = re.compile(r"\b(?:alignas|__align__|__attribute__|decltype)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)")
NO_VARIABLE = re.compile(r"\b(?:constexpr|extern|template|class|enum|typedef|using)\b")
ASM = re.compile(r"\basm\s*(?:volatile\s*)?\((?=\s*\")")
KERNEL_ADDRESS = re.compile(r"\breinterpret_cast<const void\*>\((kernel)\)")
# What is compiled where there is no __CUDA_ARCH__.
ARCHITECTURE = re.compile(r"#if [^\n]*__CUDA_ARCH__[^\n]*\n(?:(?!#else|#endif).*\n)*(?:#else[^\n]*\n)?")
STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"')
KNOWN = set(re.findall(r"\bptx_\w+", (Path(__file__).parent / "include" / "ptx.h").read_text(encoding="utf-8")))
# What the C library does to memory passes no hook of the compiler.
REDIRECTED = "".join(f'asm("{name} = emulator_{name}");\n' for name in ("memcpy", "memmove", "memset", "memcmp"))
OPENING, CLOSING = "([{", ")]}"


def closing(text: str, opening: int) -> int:
    """Where the bracket at `opening` is closed."""
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] in OPENING) - (text[at] in CLOSING)
        if depth == 0:
            return at
    raise ValueError("a bracket is never closed")


def callee_start(text: str, end: int) -> int:
    """Where the name of the kernel that ends at `end` begins, its template arguments included."""
    at = len(text[:end].rstrip())
    if text[at - 1] == ">":
        depth = 0
        while True:
            at -= 1
            depth += (text[at] == ">") - (text[at] == "<")
            if depth == 0:
                break
    while at > 0 and re.match(r"[\w:]", text[at - 1]):
        at -= 1
    return at


def launches(text: str) -> str:
    out = ""
    while (at := text.find("<<<")) >= 0:
        start, end = callee_start(text, at), text.index(">>>", at)
        callee, configuration = text[start:at].strip(), text[at + 3 : end]
        opening = text.index("(", end)
        last = closing(text, opening)
        given = text[opening + 1 : last]
        name, words = re.sub(r"\s+", "", callee), " ".join(given.split())
        lines = "\n" * text[at : opening + 1].count("\n")
        named = f'::emulator::arguments("{words}", {words}), ' if words and '"' not in words else ""
        out += text[:start] + f"({named}"
        out += f'::emulator::run("{name}", [=] {{ {callee}({given}); }}, {" ".join(configuration.split())})){lines}'
        text = text[last + 1 :]
    return out + text


def parts(text: str, separator: str = ",") -> list[str]:
    """`text` cut at its commas, but not within brackets or quotes; < > are brackets except in a value, behind "="."""
    found, depth, quoted, value = [""], 0, False, separator == ";"
    for character in text:
        quoted ^= character == '"'
        if not quoted:
            value |= depth == 0 and character in "={"
            brackets = ("([{", ")]}") if value else ("([{<", ")]}>")
            depth += (character in brackets[0]) - (character in brackets[1])
        if character == separator and depth == 0 and not quoted:
            found.append("")
            value = separator == ";"
        else:
            found[-1] += character
    return found


def shared(match: re.Match[str]) -> str:
    out, kind = [], ""
    for part in parts((match[1] or "") + re.sub(r"\balignas\b", "__align__", match[2])):
        declarator = DECLARATOR.fullmatch(part)
        assert declarator, f"not understood: {match[0]}"
        kind = kind or declarator[1].strip()
        name, dimensions, own = declarator[2], declarator[3], f"shared_{declarator[2]}_"
        out.append(
            f"static const char {own}key = 0; typedef {kind} {own}type{dimensions}; {own}type& {name} = "
            f'*static_cast<{own}type*>(::emulator::shared_variable(&{own}key, "{name}", sizeof({own}type), '
            f"alignof({own}type)));"
        )
    return " ".join(out)


def scope(text: str, at: int) -> str:
    """What `at` lies in: a namespace, a class or a function."""
    found = []
    for brace in re.finditer(r"[{}]", STRING.sub(lambda m: " " * len(m[0]), text[:at])):
        before = text[: brace.start()]
        if brace[0] == "}":
            found = found[:-1]
        elif re.search(r'(?:\bnamespace(?:\s+[\w:]+)?|\bextern\s*"[^"]*")\s*$', before):
            found.append("namespace")
        else:
            found.append("class" if re.search(r"\b(?:struct|class|union)\b[^;{}()]*$", before) else "function")
    return found[-1] if found else "namespace"


def shared_by_file(text: str) -> str:
    """Shared variables outside of functions: no block runs where they are declared, so each use asks for them."""
    at = 0
    while match := re.compile(f"{EXTERN_SHARED.pattern}|{SHARED.pattern}").search(text, at):
        at = match.end()
        if scope(text, match.start()) != "namespace":
            continue
        if match[3]:  # extern
            uses = {
                match[3]: f'static_cast<{match[2]}*>(::emulator::dynamic_shared("{match[3]}", alignof({match[2]})))'
            }
            made = "\n" * match[0].count("\n")
        else:
            declared = re.findall(r"(static .*?;) \w+& (\w+) = (.*?\)\));", shared(SHARED.fullmatch(match[0])))  # type: ignore[arg-type]
            made = " ".join(types for types, _, _ in declared)
            uses = {name: f"({value})" for _, name, value in declared}
        rest = text[at:]
        for name, value in uses.items():
            pattern = rf"{STRING.pattern}|(?<![\w.>:]){name}\b"
            rest = re.sub(pattern, lambda m, value=value: m[0] if m[0][0] == '"' else value, rest)  # type: ignore[misc]
        text = text[: match.start()] + made + rest
        at = match.start() + len(made)
    return text


def variables(text: str) -> str:
    """Variables of the GPU's memory: __device__, __constant__ and __managed__."""
    at = 0
    while match := VARIABLE.search(text, at):
        at = match.end()
        plain = ATTRIBUTE.sub(lambda m: " " * len(m[0]), text[match.start() :])
        ends = re.search(r"[;={(]", plain)
        head = plain[: ends.start()] if ends else ""
        before = re.split(r"[;{}]|\n\s*#[^\n]*\n", text[: match.start()])[-1]
        where = scope(text, match.start())
        if not ends or ends[0] == "(" or where == "class" or NO_VARIABLE.search(before + head):
            continue
        end = match.start() + len(parts(plain, ";")[0])
        statement, out = text[match.start() : end], ""
        if of_type := re.search(r"\b((?:struct|union)\s*)(\w*)\s*\{", statement[: ends.end()]):  # and variables of it
            last = closing(statement, ends.start()) + 1
            name = of_type[2] or f"device_type_{match.start()}_"
            out = f"{of_type[1]} {name} {statement[ends.start() : last]}; "
            statement = f"{statement[: of_type.start()]} {name} {statement[last:]}"
        out += declared_variables(statement, where, managed=match[1] == "__managed__")
        text = text[: match.start()] + out + text[end + 1 :]
        at = match.start() + len(out)
    return text


def declared_variables(text: str, where: str, managed: bool) -> str:
    out, kind = [], ""
    for part in parts(NO_TYPE.sub("", re.sub(r"\balignas\b", "__align__", text))):
        begin = re.search(r"[={]", part)
        declarator = DECLARATOR.fullmatch(part[: begin.start()] if begin else part)
        assert declarator, f"not understood: {text}"
        kind = kind or declarator[1].strip()
        name, dimensions = declarator[2], declarator[3]
        own, value = f"device_{name}_", part[begin.start() :].lstrip("=") if begin else ""
        if dimensions.replace(" ", "").startswith("[]"):  # as many as there are values
            out.append(f"static const {kind} {own}all{dimensions} = {' '.join(value.split())};")
            dimensions = f"[sizeof {own}all / sizeof *{own}all]" + dimensions[dimensions.index("]") + 1 :]
        given = f" = {{{{}}, {value}, {{}}}}" if value.strip() else ""
        out.append(
            f"typedef {kind} {own}type{dimensions}; "
            f"static struct {{ char before[::emulator::kGuard]; {own}type value; char behind[::emulator::kGuard]; }} "
            f"{own}in{given}; static {own}type& {name} = {own}in.value; constinit static ::emulator::DeviceVariable "
            f'{own}is{{"{name}", &{own}in.value, sizeof({own}type), alignof({own}type), {str(managed).lower()}}}; '
            + (f"{own}is.is_known();" if where == "function" else f"static const bool {own}known = {own}is.is_known();")
        )
    return " ".join(out)


def instruction(text: str) -> str:
    """The first PTX instruction of `text`, which is what stands between the quotes of an asm statement."""
    words = [line.strip("{} ").split()[0] for line in ptx_words.instructions(text)]
    return next((word for word in words if not word.startswith(".")), "")


def ptx(text: str) -> str:
    out = ""
    while match := ASM.search(text):
        last = closing(text, match.end() - 1)
        statement = ARCHITECTURE.sub(lambda m: "\n" * m[0].count("\n"), text[match.end() : last])
        statement = statement.replace("#endif", "")
        code, *operands = parts(statement, ":")
        code = "".join(STRING.findall(code))
        name = instruction(code)
        call = "ptx_" + re.sub(r"\W+", "_", name)
        given = [value for group in operands[:2] for value in parts(group) if "(" in value]
        given = [" ".join(value[value.index("(") + 1 : value.rindex(")")].split()) for value in given]
        lines = ptx_words.instructions(code)
        done = [ptx_words.translated(line, given) or "" for line in lines]
        if all(done):
            pass
        elif call in KNOWN and all(line.strip("{} ").startswith((".", "selp", name)) for line in lines):
            values = [given[int(number)] for number in re.findall(r"%(\d+)", code)]
            done = [f"::emulator::{call}({', '.join(values)})"]
        else:
            done = [cpp or f'::emulator::unknown_instruction("{line}")' for line, cpp in zip(lines, done, strict=True)]
        out += text[: match.start()] + ", ".join(done) + "\n" * statement.count("\n")
        text = text[last + 1 :]
    return out + text


def rewrite(text: str, path: str) -> str:
    text = COMMENT_OR_STRING.sub(lambda m: m[0] if m[0].startswith('"') else "\n" * m[0].count("\n"), text)
    text = ptx(text)
    text = shared_by_file(variables(text))
    text = EXTERN_SHARED.sub(r'\2* \3 = static_cast<\2*>(::emulator::dynamic_shared("\3", alignof(\2)));', text)
    text = SHARED.sub(shared, text)
    text = KERNEL_ADDRESS.sub(r"::emulator::kernel_address(\1)", text)
    text = BUILT_IN.sub(lambda m: f"::emulator::{m[1]}_{m[2]}()" if m[2] else f"::emulator::{WHOLE[m[1]]}()", text)
    text = UNROLL.sub(lambda m: f"{m[1]}#pragma GCC unroll {m[2] or 64}", text)
    return f'#include <cuda_runtime.h>\n{REDIRECTED}#line 1 "{path}"\n{launches(text)}'


def main(source: Path, target: Path, files: list[str]) -> None:
    for file in files:
        path = Path(file)
        relative = path.relative_to(source)
        to = target / (f"{relative}.cpp" if path.suffix == ".cu" else relative)
        text = rewrite(path.read_text(encoding="utf-8"), str(path))
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists() or to.read_text(encoding="utf-8") != text:
            to.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
