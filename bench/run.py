#!/usr/bin/env python3
"""Measures one model at several memory budgets and contexts, and llama.cpp beside it, into one JSON file.

  bench/run.py MODEL RESULT.json [--budgets 2.6GiB,4GiB,8GiB,16GiB,resident] [--contexts 1024,8192,32768]
               [--context-budget 4GiB] [--threads N] [--llama DIR --gguf FILE] [--group-bytes N]

MODEL is a container, such as `cargo xtask synth` writes. `bench/report.py` makes tables and a plot of the result. Every row is
a process of its own; `resident` has everything in memory, and is left out where that does not fit. Nothing else may run meanwhile: one busy core costs either engine most of its speed.
Needs Python's standard library; $SPINETAIL names the binary (else target/release/spinetail).
"""
import argparse, datetime, json, os, pathlib, platform, re, shutil, signal, subprocess, sys, time

HERE = pathlib.Path(__file__).resolve().parent
SPINETAIL = os.environ.get("SPINETAIL", str(HERE.parent / "target/release/spinetail"))
# Kept away from what other runs learned of the model or the drive.
STATE = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"spinetail-bench-{os.getpid()}"


def call(command, limit_s=900):
    """What a command prints, or None where it fails or takes too long; says so and goes on."""
    print("  " + " ".join(command), file=sys.stderr, flush=True)
    environment = dict(os.environ, XDG_STATE_HOME=str(STATE))
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=limit_s, env=environment)
    except OSError as error:
        print(f"    cannot be run: {error}", file=sys.stderr)
        return None
    except subprocess.TimeoutExpired:
        print(f"    took more than {limit_s} s", file=sys.stderr)
        return None
    if done.returncode:
        print(f"    failed ({done.returncode}): {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    return done.stdout


def machine():
    """What this machine is, as far as Linux says."""
    def find(path, pattern):
        try:
            found = re.search(pattern, pathlib.Path(path).read_text(), re.M)
        except OSError:
            return None
        return found and found.group(1).strip()

    kib = find("/proc/meminfo", r"^MemTotal:\s+(\d+)")
    return {
        "processor": find("/proc/cpuinfo", r"^model name\s*:\s*(.*)") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": int(kib) * 1024 if kib else None,
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
    }


class Bench:
    """Runs `spinetail bench` on one model and keeps its rows."""

    def __init__(self, model, threads, save):
        self.model, self.threads, self.save, self.rows = model, threads, save, []

    def run(self, label, budget, *arguments):
        command = [SPINETAIL, "bench", self.model, "--json", *arguments]
        command += ["--memory", budget] if budget != "resident" else ["--memory", self.resident(), "--preload"]
        command += ["--threads", str(self.threads)] if self.threads else []
        out = call(command)
        if out:
            row = dict(json.loads(out), label=label, budget=budget, arguments=list(arguments), at=int(time.time()))
            row["model"] = pathlib.Path(row["model"]).name
            if budget == "resident" and row["slots_bytes"] < row["records_bytes"]:
                print("    not everything fits this machine's memory: left out", file=sys.stderr)
                return
            self.rows.append(row)
            self.save("spinetail", self.rows)

    def resident(self):
        """A budget that has room for every expert and the longest batch of a prompt."""
        gib = int(machine()["memory_bytes"] / 2**30)
        return f"{max(gib - 3, 1)}GiB"


def spinetail(a, save):
    bench = Bench(a.model, a.threads, save)
    for budget in a.budgets:
        resident = budget == "resident"
        # A large cache would still be filling after so few tokens.
        full = [] if resident else ["--preload"]
        if not resident:
            bench.run("cold", budget, "--decode", "32", "--warmup", "0", "--runs", "1", "--lookahead", "off")
            bench.run("warm, no lookahead", budget, "--decode", "32", "--warmup", "96", "--runs", "3", "--lookahead", "off", *full)
        bench.run("warm", budget, "--decode", "32", "--warmup", "4" if resident else "96", "--runs", "3", *full)
        bench.run("prefill", budget, "--decode", "0", "--prefill", "512,2048", "--runs", "3")
        if a.contexts and budget in ("resident", a.context_budget):
            fills = ",".join(map(str, a.contexts))
            warmup = "4" if resident else "64"
            bench.run("context", budget, "--decode", "16", "--warmup", warmup, "--runs", "3", "--context-fill", fills)


def llama(a, save):
    """The same for llama.cpp: everything in memory, and in a control group of --group-bytes."""
    program, rows = str(pathlib.Path(a.llama).resolve() / "llama-bench"), []
    threads = str(a.threads or machine()["cores"])
    base = [program, "-m", a.gguf, "-t", threads, "-o", "json"]

    def run(label, prefix, *arguments):
        out = call([*prefix, *base, *arguments], 1800)
        start = out.find("[") if out else -1
        if start >= 0:
            for row in json.JSONDecoder().raw_decode(out[start:])[0]:
                kept = ("n_prompt", "n_gen", "avg_ts", "stddev_ts", "samples_ts", "n_threads", "build_number", "model_type")
                rows.append(dict({key: row.get(key) for key in kept}, label=label, arguments=list(arguments)))
            save("llama.cpp", rows)

    run("resident", [], "-p", "512,2048", "-n", "32", "-r", "3")
    if a.group_bytes:
        # Pages that another process read before are not charged to the group.
        with open(a.gguf, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        group = [str(HERE / "in-group.sh"), str(a.group_bytes)]
        # Repacking needs the weights a second time, which does not fit.
        run("group", group, "-p", "0", "-n", "8", "-r", "2", "--load-mode", "mmap", "--repack", "0", "--no-warmup")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model"), p.add_argument("result")
    
    def comma(of):
        """A list of what `of` makes of each part."""
        def parse(text):
            return [of(part) for part in text.split(",") if part]
        parse.__name__ = f"list of {of.__name__}"
        return parse

    p.add_argument("--budgets", type=comma(str), default="2.6GiB,4GiB,8GiB,16GiB,resident")
    p.add_argument("--contexts", type=comma(int), default="1024,8192,32768", help="positions before decoding")
    p.add_argument("--context-budget", default="4GiB", help="the budget besides 'resident' at which contexts are measured")
    p.add_argument("--threads", type=int)
    p.add_argument("--llama", help="folder of llama-bench; bench/llama.sh makes one")
    p.add_argument("--gguf", help="the same shape for llama.cpp; bench/make_synth_gguf.py writes one")
    p.add_argument("--group-bytes", type=int, default=4 << 30, help="memory of llama.cpp's control group; 0 for none")
    a = p.parse_args()
    if not shutil.which(SPINETAIL):
        sys.exit(f"{SPINETAIL} is missing; build it with `cargo build --release`, or name it in $SPINETAIL")
    if not os.path.exists(a.model):
        sys.exit(f"there is no model at {a.model}")
    if not pathlib.Path(a.result).resolve().parent.is_dir():
        sys.exit(f"there is no folder for {a.result}")
    result = {
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "version": call([SPINETAIL, "--version"]).strip(),
        "command": "bench/run.py " + " ".join(pathlib.Path(x).name if "/" in x else x for x in sys.argv[1:]),
        "doctor": None,
        "spinetail": [],
        "llama.cpp": [],
    }

    def save(key, value):
        """After every row: what was measured is kept, whatever comes."""
        result[key] = value
        pathlib.Path(a.result).write_text(json.dumps(result, indent=1) + "\n")

    # Ended in another way than by the end, the folder is removed as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        doctor = call([SPINETAIL, "doctor", a.model, "--seconds", "8", "--json"])
        save("doctor", doctor and scrub(json.loads(doctor)))
        spinetail(a, save)
        if a.llama and a.gguf:
            llama(a, save)
    finally:
        shutil.rmtree(STATE, ignore_errors=True)


def scrub(doctor):
    """Without names of files, which are nobody's business."""
    if doctor.get("drive"):
        doctor["drive"] = {k: v for k, v in doctor["drive"].items() if k in ("read_bytes", "burst_records", "tried", "chosen")}
    return doctor


if __name__ == "__main__":
    main()
