"""One Sinkhorn iteration on a strip of the kernel that is computed from vectors: the library's implementation compared
with torch.compile.

Times are medians of processor time. Compiling needs a C++ compiler; the reported compile time is reached only if
torch's compile cache is empty.
"""

from __future__ import annotations

import argparse
import time

import torch

EPSILON, FLOOR = 0.05, -65.0


def median(step, repeat, *rows):
    step(*rows)
    times = []
    for _ in range(repeat):
        start = time.process_time()
        step(*rows)
        times.append(time.process_time() - start)
    return sorted(times)[repeat // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs=2, default=[1200, 10_000])
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=15)
    options = parser.parse_args()
    n, m = options.rows
    generator = torch.Generator().manual_seed(0)
    X, Y = (torch.randn(rows, options.dim + 2, generator=generator) for rows in (n, m))
    X, Y = torch.nn.functional.normalize(X) / EPSILON, torch.nn.functional.normalize(Y)
    b, floor, scratch = torch.rand(m, generator=generator), torch.tensor(FLOOR), torch.empty(n, m)

    def ours():
        K = torch.matmul(X, Y.T, out=scratch)
        torch.exp(torch.maximum(K, floor, out=K), out=K)
        a = 1 / (K @ b)
        return a, a @ K

    def plain(X, Y, b):
        K = torch.exp(torch.clamp(X @ Y.T, min=FLOOR))
        a = 1 / (K @ b)
        return a, a @ K

    with torch.no_grad():
        print(f"ours {1e3 * median(ours, options.repeat):.0f} ms")
        print(f"the same written plainly {1e3 * median(plain, options.repeat, X, Y, b):.0f} ms")
        for mode in ("default", "max-autotune-no-cudagraphs"):
            compiled = torch.compile(plain, mode=mode, dynamic=False)
            start = time.perf_counter()
            result = compiled(X, Y, b)
            seconds = time.perf_counter() - start
            for actual, expected in zip(result, ours(), strict=True):
                torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
            took = 1e3 * median(compiled, options.repeat, X, Y, b)
            print(f"torch.compile, {mode}: {took:.0f} ms, after {seconds:.0f} s of compiling")


if __name__ == "__main__":
    main()
