"""The command line: `python -m bench`."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from bench import chart, gpu, gpu_cases, report, scaling
from bench.cases import all_cases
from bench.machine import cores
from bench.peers import PEERS
from bench.run import run
from bench.timer import FULL, QUICK


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0, 1 if a candidate of ours is wrong or fails, 2 for a bad argument."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    cpu = commands.add_parser("cpu", help="run cases on the CPU, side by side with peers")
    cpu.add_argument("--quick", action="store_true", help="small sizes: shows that it runs")
    cpu.add_argument("--case", action="append", metavar="NAME", help="only this one; repeatable")
    cpu.add_argument("--threads", default=None, metavar="N[,N]", help="default: 1 and all cores")
    cpu.add_argument("--no-memory", action="store_true", help="leave the peaks out")
    cpu.add_argument("--json", metavar="FILE", help="write the result")
    cpu.add_argument("--markdown", metavar="FILE", help="write the table; default: print it")
    cpu.add_argument("--update", action="store_true", help="keep other cases of the --json file")
    device = commands.add_parser("gpu", help="run ops on a CUDA device, against the CPU")
    device.add_argument("--quick", action="store_true", help="small sizes: shows that it runs")
    device.add_argument("--case", action="append", metavar="TEXT", help="only those named so")
    device.add_argument("--json", metavar="FILE", help="write the result")
    device.add_argument("--markdown", metavar="FILE", help="write the table; default: print it")
    growth = commands.add_parser("scaling", help="training steps on up to 1e8 entries")
    growth.add_argument("--to", type=float, default=scaling.ENTRIES[-1], metavar="N")
    growth.add_argument("--json", metavar="FILE", help="write the result")
    growth.add_argument("--plot", metavar="FILE", help="draw it (needs matplotlib)")
    commands.add_parser("list", help="cases, variants, and which peers are here")
    table = commands.add_parser("table", help="print the table of a JSON file")
    table.add_argument("file")
    table.add_argument("--plot", metavar="FILE", help="draw that of the CPU (needs matplotlib)")
    options = parser.parse_args(argv)
    if options.what == "list":
        return _list()
    if options.what == "table":
        document = json.loads(Path(options.file).read_text(encoding="utf-8"))
        of_gpu = document.get("kind") == "gpu"
        if options.plot and of_gpu:
            parser.error("--plot: a result of the CPU is drawn, got one of a GPU")
        text = gpu.markdown(document) if of_gpu else report.markdown(report.read(options.file))
        if options.plot:
            chart.plot(document, options.plot)
        print(text, end="")
        return 0
    if options.what == "scaling":
        return _scaling(options)
    if options.what == "gpu":
        return _gpu(options, parser)
    return _cpu(options, parser, argv)


def _gpu(options: Any, parser: argparse.ArgumentParser) -> int:
    from sparsegrad import DeviceError

    _check_folders(options, parser)
    try:
        document = gpu.run(
            "quick" if options.quick else "full",
            options.case or (),
            lambda text: print(text, file=sys.stderr, flush=True),
        )
    except (DeviceError, ValueError) as error:
        print(f"bench gpu: {error}", file=sys.stderr)
        return 2
    _write(options, document, gpu.markdown(document))
    return int(any("failed" in row for row in document["results"]))


def _check_folders(options: Any, parser: argparse.ArgumentParser) -> None:
    """Before the minutes of measuring, not after."""
    for option in ("json", "markdown"):
        path = getattr(options, option)
        folder = Path(path).resolve().parent if path else None
        if folder and not (folder.is_dir() and os.access(folder, os.W_OK)):
            parser.error(f"--{option}: no directory {str(Path(path).parent)!r} that can be written")


def _write(options: Any, document: dict[str, Any], text: str) -> None:
    if options.json:
        report.write_json(document, options.json)
    if options.markdown:
        Path(options.markdown).write_text(text, encoding="utf-8")
    else:
        print(text, end="")


def _scaling(options: Any) -> int:
    entries = [nnz for nnz in scaling.ENTRIES if nnz <= options.to]
    document = scaling.run(entries, say=lambda text: print(text, file=sys.stderr, flush=True))
    if options.json:
        report.write_json(document, options.json)
    if options.plot:
        scaling.plot(document, options.plot)
    print(scaling.text(document), end="")
    return int(any("failed" in row for found in document["series"] for row in found["rows"]))


def _list() -> int:
    for case in all_cases().values():
        print(f"{case.name:12} {case.title}")
        for variant in case.variants("full"):
            print(f"{'':12} - {variant['label']}")
    print(f"{'gpu':12} ops on a CUDA device (python -m bench gpu)")
    for gpu_case in gpu_cases.all_cases(60, 300):
        print(f"{'':12} - {gpu_case.name}")
    for peer in PEERS.values():
        print(f"peer {peer.title}: {peer.missing() or 'installed'}")
    return 0


def _cpu(options: Any, parser: argparse.ArgumentParser, argv: list[str]) -> int:
    known = all_cases()
    names = options.case or list(known)
    for name in names:
        if name not in known:
            parser.error(f"--case: no case {name!r}; known: {', '.join(known)}")
    _check_folders(options, parser)
    if options.update and not (options.json and Path(options.json).is_file()):
        parser.error("--update: needs --json with a file that is there")
    document = run(
        [known[name] for name in dict.fromkeys(names)],
        size="quick" if options.quick else "full",
        threads=_thread_counts(options.threads, parser),
        effort=QUICK if options.quick else FULL,
        command=_command(argv),
        memory=not options.no_memory,
        bandwidths=not options.quick,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    if options.update:
        document = report.updated(report.read(options.json), document)
    _write(options, document, report.markdown(document))
    ours = [row for e in document["results"] for row in e["candidates"] if row["role"] == "ours"]
    return 0 if all(row["status"] == "timed" for row in ours) else 1


def _thread_counts(text: str | None, parser: argparse.ArgumentParser) -> list[int]:
    if text is None:
        return sorted({1, cores()})
    parts = text.split(",")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        parser.error(f"--threads: expected positive numbers such as 1,2; got {text!r}")
    return list(dict.fromkeys(map(int, parts)))


def _command(argv: list[str]) -> str:
    """The command without the files it wrote, which are nobody's business."""
    kept, skip = [], False
    for word in argv:
        if not skip and not word.startswith(("--json", "--markdown")):
            kept.append(word)
        skip = word in ("--json", "--markdown")
    return shlex.join(["python", "-m", "bench", *kept])


if __name__ == "__main__":
    sys.exit(main())
