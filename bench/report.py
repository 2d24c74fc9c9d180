#!/usr/bin/env python3
"""Makes Markdown tables, and with --svg a plot, of what bench/run.py measured.

  bench/report.py RESULT.json … [--svg PLOT.svg]

Each result is one model on one machine; the plot shows the decode rates of all of them over the memory that they had.
Needs Python's standard library.
"""
import argparse, html, json, pathlib, sys
from statistics import median

GIB = 2**30


def rates(row):
    return [row["tokens"] / s for s in row["seconds"]]


def spread(values, digits=1):
    low, high = min(values), max(values)
    middle = f"{median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({low:.{digits}f}–{high:.{digits}f})"


def read_per_token(row):
    return row["expert_bytes_read"] / (row["tokens"] * len(row["seconds"]))


def hits(row):
    uses = row["expert_hits"] + row["expert_late"] + row["expert_misses"]
    return row["expert_hits"] / uses if uses else 1


def burst_rate(result):
    """What the drive reads in bursts of one layer's experts, drained between, as the engine was told to read."""
    drive = (result.get("doctor") or {}).get("drive")
    return drive["chosen"]["burst_bytes_per_s"] if drive else None


def resident_decode(result):
    """Median rate with everything in memory, if that was measured."""
    found = [d for r in result["spinetail"] if r["budget"] == "resident" and r["label"] == "warm" for d in r["decode"]]
    return median(rates(found[0])) if found else None


def bound(result, row):
    """Tokens per second if reads took as long as the probe says: in turns with the dense weights' part of compute, as
    without lookahead, and if the longer of reads and all compute hid the other."""
    rate, whole = burst_rate(result), resident_decode(result)
    if not rate or not whole:
        return None, None
    read = read_per_token(row) / rate
    touched = sum(row[k] for k in ("dense_bytes_per_token", "expert_bytes_per_token", "state_bytes_per_token"))
    dense = (1 - row["expert_bytes_per_token"] / touched) / whole
    hides = 1 / max(read, 1 / whole)
    return min(1 / (read + dense), hides), hides


def size(b):
    """Bytes for people."""
    if not b:
        return "0"
    for unit, bytes in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if b >= bytes:
            break
    return f"{b / bytes:.{2 if unit == 'GiB' else 1 if b < 100 * bytes else 0}f} {unit}"


def heading(result):
    m, doctor = result["machine"], result.get("doctor")
    print(f"{m['processor']}, {m['cores']} cores, {m['memory_bytes'] / GIB:.0f} GiB, {m['system']}; {result['date']}, {result['version']}")
    print(f"\n    {result['command']}\n")
    if doctor:
        r, d = doctor["rates"][-1], doctor.get("drive")
        text = (f"Of this machine, with {r['threads']} threads: memory {r['memory_bytes_per_s'] / 1e9:.1f} GB/s, 4-bit weights from it "
                f"{r['unpack_memory_bytes_per_s'] / 1e9:.1f} GB/s, integer products {r['integer_ops_per_s'] / 1e9:.0f} GOPS")
        if d:
            c = d["chosen"]
            text += (f"; drive, in bursts of {d['burst_records']} records of {d['read_bytes'] / 2**20:.2f} MiB, {c['mode']} into {c['pages']} "
                     f"pages, {c['depth']} at once: {c['burst_bytes_per_s'] / 1e9:.2f} GB/s")
        print(text + ".\n")


def decode_table(result):
    print("| budget | kernel's peak | decode | hits | read per token | of the drive's bursts | tok/s | in turns | longer hides |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in result["spinetail"]:
        if row["label"] not in ("cold", "warm", "warm, no lookahead"):
            continue
        d = row["decode"][0]
        turns, hides = bound(result, d)
        used = read_per_token(d) * median(rates(d)) / burst_rate(result) if burst_rate(result) else None
        shown = lambda v, form: form.format(v) if v else "–"
        # The tables' two bounds are of rows that read.
        reads = row["budget"] != "resident"
        print(f"| {row['budget']} | {size(row['peak_rss_bytes'])} | {row['label'] if reads else 'all in memory'} | {100 * hits(d):.0f} % "
              f"| {size(read_per_token(d))} | {shown(used and 100 * used, '{:.0f} %')} | {spread(rates(d), 2)} "
              f"| {shown(reads and turns, '{:.1f}')} | {shown(reads and hides, '{:.1f}')} |")
    for row in result["llama.cpp"]:
        if row["n_gen"]:
            where = "llama.cpp, all in memory" if row["label"] == "resident" else "llama.cpp, in the group"
            print(f"| {where} | | | | | | {row['avg_ts']:.2f} ± {row['stddev_ts']:.2f} | | |")
    print()


def prefill_table(result):
    theirs = {r["n_prompt"]: r for r in result["llama.cpp"] if r["n_prompt"] and r["label"] == "resident"}
    print("| budget | kernel's peak | tokens | read per token | tok/s | to llama.cpp in memory |")
    print("|---|---|---|---|---|---|")
    for row in result["spinetail"]:
        for p in row["prefill"]:
            other = theirs.get(p["tokens"])
            ratio = f"{median(rates(p)) / other['avg_ts']:.2f}" if other else "–"
            budget = "all in memory" if row["budget"] == "resident" else row["budget"]
            print(f"| {budget} | {size(row['peak_rss_bytes'])} | {p['tokens']} | {size(read_per_token(p))} | {spread(rates(p))} | {ratio} |")
    for r in theirs.values():
        print(f"| llama.cpp, all in memory | | {r['n_prompt']} | | {r['avg_ts']:.1f} ± {r['stddev_ts']:.1f} | |")
    print()


def context_table(result):
    rows = [r for r in result["spinetail"] if r["label"] == "context"]
    if rows:
        print("| budget | positions before | hits | read per token | tok/s |\n|---|---|---|---|---|")
    for row in rows:
        for d in row["decode"]:
            budget = "all in memory" if row["budget"] == "resident" else row["budget"]
            print(f"| {budget} | {d['context']:,} | {100 * hits(d):.0f} % | {size(read_per_token(d))} | {spread(rates(d))} |")
    if rows:
        print()


class Plot:
    """Decode rates over memory: one colour for each result, its bounds dashed."""

    W, H, LEFT, TOP, RIGHT, BOTTOM = 860, 480, 60, 30, 250, 50
    COLOURS = ["#1b6ca8", "#c2571a", "#2a7f3f", "#7a3e9d"]

    def __init__(self, results):
        points = [(self.memory(r, row), median(rates(row["decode"][0]))) for r in results for row in self.rows(r, "warm")]
        self.most = (max(x for x, _ in points) * 1.05, max(self.ceiling(r) or 0 for r in results) * 1.05)
        self.most = (self.most[0], max(self.most[1], max(y for _, y in points) * 1.1))
        self.out, self.legend = [], []

    @staticmethod
    def rows(result, label):
        return [r for r in result["spinetail"] if r["label"] == label and r["decode"]]

    @staticmethod
    def memory(_, row):
        return row["budget_bytes"] / GIB

    @staticmethod
    def ceiling(result):
        """Tokens per second if a token cost no more than reading its bytes from memory."""
        rows = Plot.rows(result, "warm")
        if not rows or not result.get("doctor"):
            return None
        d = rows[0]["decode"][0]
        touched = sum(d[k] for k in ("dense_bytes_per_token", "expert_bytes_per_token", "state_bytes_per_token"))
        return result["doctor"]["rates"][-1]["memory_bytes_per_s"] / touched

    def x(self, v):
        return self.LEFT + v / self.most[0] * (self.W - self.LEFT - self.RIGHT)

    def y(self, v):
        return self.H - self.BOTTOM - v / self.most[1] * (self.H - self.TOP - self.BOTTOM)

    def line(self, points, colour, dash=""):
        path = " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in points)
        self.out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>')

    def text(self, x, y, text, anchor="start", colour="#333"):
        text = html.escape(text)
        self.out.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{text}</text>')

    def key(self, text, colour, dash=None):
        y, x = self.TOP + 18 * len(self.legend) + 8, self.W - self.RIGHT + 14
        self.legend.append(text)
        if dash is None:
            self.out.append(f'<circle cx="{x + 12}" cy="{y}" r="4" fill="{colour}"/>')
        else:
            self.out.append(f'<line x1="{x}" x2="{x + 24}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>')
        self.text(x + 30, y + 4, text)

    def axes(self):
        for v in range(0, int(self.most[0]) + 1, 4 if self.most[0] < 40 else 16):
            self.text(self.x(v), self.H - self.BOTTOM + 18, f"{v}", "middle")
        step = next(s * 10**e for e in range(9) for s in (1, 2, 5) if self.most[1] / (s * 10**e) < 9)
        for v in range(0, int(self.most[1]) + 1, step):
            self.out.append(f'<line x1="{self.LEFT}" x2="{self.x(self.most[0]):.0f}" y1="{self.y(v):.1f}" y2="{self.y(v):.1f}" stroke="#ddd"/>')
            self.text(self.LEFT - 8, self.y(v) + 4, f"{v}", "end")
        self.text(self.x(self.most[0] / 2), self.H - 12, "memory budget, GiB", "middle")
        self.text(self.LEFT - 40, self.TOP - 12, "decode, tokens per second")

    def result(self, result, name, colour):
        warm = self.rows(result, "warm")
        points = [(self.memory(result, r), median(rates(r["decode"][0]))) for r in warm]
        self.line(points, colour)
        for (a, b), row in zip(points, warm):
            values = rates(row["decode"][0])
            self.out.append(f'<circle cx="{self.x(a):.1f}" cy="{self.y(b):.1f}" r="4" fill="{colour}"/>')
            self.line([(a, min(values)), (a, max(values))], colour)
        self.key(name, colour, "")
        bounds = [(self.memory(result, r), bound(result, r["decode"][0])[1]) for r in warm if r["budget"] != "resident"]
        if bounds and all(b for _, b in bounds):
            self.line(bounds, colour, "5 4")
            self.key("… the longer of drive and compute", colour, "5 4")
        ceiling = self.ceiling(result)
        if ceiling:
            self.line([(0, ceiling), (self.most[0], ceiling)], colour, "1 4")
            self.key("… bytes at the memory's speed", colour, "1 4")
        group = max((r["budget_bytes"] for r in warm if r["budget"] == "4GiB"), default=4 * GIB) / GIB
        for row in (r for r in result["llama.cpp"] if r["n_gen"]):
            at = self.most[0] / 1.05 if row["label"] == "resident" else group
            self.out.append(f'<rect x="{self.x(at) - 5:.1f}" y="{self.y(row["avg_ts"]) - 5:.1f}" width="10" height="10" fill="#444"/>')
            if row["label"] == "resident":
                self.key("llama.cpp (squares)", "#444", "")

    def svg(self, results):
        self.out = []
        self.axes()
        for i, (name, result) in enumerate(results):
            self.result(result, name, self.COLOURS[i % len(self.COLOURS)])
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.W} {self.H}" font-family="sans-serif" font-size="12">'
        return "\n".join([head, f'<rect width="{self.W}" height="{self.H}" fill="white"/>', *self.out, "</svg>", ""])


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("results", nargs="+", help="file of bench/run.py, or NAME=FILE to name it in the plot")
    p.add_argument("--svg", help="where the plot goes")
    a = p.parse_args()
    named = [r.split("=", 1) if "=" in r else (pathlib.Path(r).stem, r) for r in a.results]
    results = []
    for name, file in named:
        try:
            result = json.loads(pathlib.Path(file).read_text())
            result["machine"], result["spinetail"], result["llama.cpp"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f"{file} is no result of bench/run.py: {error!r}")
        # Everything in memory last, which has the largest budget.
        result["spinetail"].sort(key=lambda row: (row["budget"] == "resident", row["budget_bytes"]))
        results.append((name, result))
    for name, result in results:
        print(f"### {name}\n")
        heading(result), decode_table(result), prefill_table(result), context_table(result)
    if a.svg:
        try:
            pathlib.Path(a.svg).write_text(Plot([r for _, r in results]).svg(results))
        except OSError as error:
            sys.exit(f"cannot write {a.svg}: {error}")


if __name__ == "__main__":
    main()
