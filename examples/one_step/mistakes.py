"""Four programs of this folder with a mistake that is common in their kind: `python mistakes.py` writes four .cu files.

Each compiles, runs and learns. docs/one-step.md says how to find out which mistake is where, without reading this file.
"""

from pathlib import Path

HERE = Path(__file__).parent
CLOCK = "std::chrono::steady_clock::now()"
MISTAKES = {
    "mistake_1.cu": ("4_naive.cu", {") / batch;\n}": ");\n}"}),
    "mistake_2.cu": ("6_libraries.cu", {"g + FC2_W, dlogits, true": "g + FC2_W, dlogits, false"}),
    "mistake_3.cu": (
        "4_naive.cu",
        {
            "#include <cstdio>": "#include <chrono>\n#include <cstdio>",
            "if (step == 10) CHECK(cudaEventRecord(begin));": f"if (step == 10) before = {CLOCK};",
            "  cudaEvent_t begin, end;": f"  auto before = {CLOCK};\n  cudaEvent_t begin, end;",
            "  CHECK(cudaEventRecord(end));": f"  const auto after = {CLOCK};",
            "    CHECK(cudaEventElapsedTime(&milliseconds, begin, end));": "    milliseconds = "
            "std::chrono::duration<float, std::milli>(after - before).count();",
        },
    ),
    "mistake_4.cu": (
        "5_tiled.cu",
        {
            "    const byte* now": "    float* scratch = allocate<float>(batch * FEATURES);\n    const byte* now",
            "backward(now, start.rate);": "backward(now, start.rate);\n    CHECK(cudaFree(scratch));",
        },
    ),
}


def broken(name):
    """The text of a program with a mistake."""
    file, changes = MISTAKES[name]
    text = (HERE / file).read_text()
    for right, wrong in changes.items():
        if text.count(right) != 1:
            raise ValueError(f"{file} has {text.count(right)} times {right!r}, expected once")
        text = text.replace(right, wrong)
    return text


if __name__ == "__main__":
    for name in MISTAKES:
        Path(name).write_text(broken(name))
        print(name)
