"""The specs of ingress-nginx against weir-ingress: how many of each area pass, and each that does not."""

import collections
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import words

HERE = pathlib.Path(__file__).parent


def load(filters):
    for file in sorted((HERE / "specs").glob("*.py")):
        importlib.import_module(f"specs.{file.stem}")
    chosen = [s for s in words.SPECS if not filters or any(word in f"{s['area']} {s['name']}" for word in filters)]
    return chosen


def work(dir, binaries, first, step, filters):
    """One worker: each `step`th spec, in a network of its own; a line of JSON for each."""
    import world
    place = world.World(pathlib.Path(dir), binaries)
    for number, spec in enumerate(load(filters)):
        if number % step != first:
            continue
        begin, problem = time.monotonic(), spec.get("cannot")
        if problem is None:
            try:
                world.Run(place, number, spec).run()
            except world.Wrong as error:
                problem = str(error)
            except Exception as error:  # A spec that is written wrongly ends nothing but itself.
                problem = repr(error)
        print(json.dumps([number, "cannot" in spec, problem, time.monotonic() - begin]), flush=True)
    place.end()


def main():
    if sys.argv[1] == "--work":
        _, _, dir, binaries, first, step, *filters = sys.argv
        return work(dir, binaries, int(first), int(step), filters)
    binaries, *filters = sys.argv[1:]
    specs = load(filters)
    count = min(int(os.environ.get("WEIR_EXAM_WORKERS", "2")), len(specs)) or 1
    dir = pathlib.Path(tempfile.mkdtemp(prefix="weir-exam-"))
    workers = []
    for n in range(count):
        (dir / str(n)).mkdir()
        command = ["unshare", "--net", sys.executable, "-B", __file__, "--work", str(dir / str(n)), binaries, str(n), str(count), *filters]
        workers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(HERE)}))
    results = {}
    for worker in workers:
        for line in worker.stdout:
            number, *rest = json.loads(line)
            results[number] = rest
        worker.wait()
    areas = collections.defaultdict(lambda: [0, 0])
    passed = 0
    for number, spec in enumerate(specs):
        cannot, problem, took = results.get(number, [False, "its worker ended", 0])
        of = areas[spec["area"]]
        of[1] += 1
        if problem is None:
            of[0] += 1
            passed += 1
            if os.environ.get("WEIR_EXAM_VERBOSE"):
                print(f"ok    {spec['area']}: {spec['name']} ({took:.1f} s)")
            if spec.get("known"):
                print(f"NEW   {spec['area']}: {spec['name']}: passes, where a reason is known why it would not")
        else:
            word = "not run" if cannot else "known" if spec.get("known") else "MISS"
            problem = spec.get("known") or problem
            print(f"{word}  {spec['area']}: {spec['name']}: {' '.join(problem.split())[-500:]}")
    print()
    for name, (good, all) in areas.items():
        print(f"{good:4} of {all:4}  {name}")
    print(f"{passed} of {len(specs)} specs pass ({sum(r[0] for r in results.values())} cannot run here); logs of those that fail: {dir}")
    # What fails with a known reason is no news; what passes in spite of one is.
    news = any((results.get(n, [0, ""])[1] is None) == bool(s.get("known")) for n, s in enumerate(specs) if "steps" in s)
    return int(news)


if __name__ == "__main__":
    sys.exit(main())
