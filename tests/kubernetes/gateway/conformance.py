"""Gateway API's own conformance suite against weir. tests/kubernetes/gateway/run starts this."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import gateway_cases  # noqa: E402
import handed_in  # noqa: E402
from node import Node  # noqa: E402
from suite import World  # noqa: E402

PROFILES = ["GATEWAY-HTTP", "GATEWAY-GRPC", "GATEWAY-TLS", "GATEWAY-TCP", "GATEWAY-UDP"]


def options(dir, version, report):
    """The suite's options: what is claimed is what the status of the class says."""
    address = lambda value: [{"type": "IPAddress", "value": value}]
    file = dir / "options.yaml"
    file.write_text(json.dumps({
        "gatewayClassName": "weir", "conformanceProfiles": PROFILES, "reportOutputPath": str(report), "cleanupBaseResources": False,
        "usableNetworkAddresses": address("127.0.10.200"), "unusableNetworkAddresses": address("127.0.11.1"),
        "implementation": handed_in.implementation(version)}))
    return file


def main():
    server, binaries, *words = sys.argv[1:]
    dir = pathlib.Path(tempfile.mkdtemp(prefix="weir-conformance-"))
    report = pathlib.Path(os.environ.get("WEIR_REPORT", dir / "report.yaml"))
    kept = pathlib.Path(os.environ["WEIR_CONFORMANCE"])
    version = subprocess.run([f"{binaries}/weir-ingress", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    world = World(dir, server, binaries)
    node = None
    try:
        gateway_cases.begin(world)
        world.begin()
        node = Node(world.api, dir, kept / "echo-basic")
        config = dir / "admin.kubeconfig"
        config.write_text((world.pod.dir / "kubeconfig").read_text().replace("ingress-token", "admin-token"))
        args = [str(kept / "conformance.test"), "-test.run", "TestConformance", "-test.timeout", "60m", "-test.v",
                f"-conformance-options-file={options(dir, version, report)}", *words]
        log = dir / "conformance.log"
        with log.open("w") as out:
            done = subprocess.run(args, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "KUBECONFIG": str(config)}, cwd=dir, check=False)
        text = log.read_text(errors="replace")
        # One line for each test, and for those that failed for each part.
        for line in re.findall(r"^ +--- (?:PASS|SKIP|FAIL): TestConformance/[^/\s]+ .*$|^ +--- FAIL: .*$", text, re.M):
            print(line)
        print(report.read_text() if report.exists() else text[-3000:])
        if report.exists() and "WEIR_REPORTS" in os.environ:
            print(f'{handed_in.write(os.environ["WEIR_REPORTS"], report.read_text())} is what conformance/reports of Gateway API takes')
            for problem in handed_in.problems(report.read_text()):
                print(f"but: {problem}")
    finally:
        if node:
            node.end()
        world.end()
    if done.returncode:
        print(f"logs: {dir}")
        sys.exit(1)
    shutil.rmtree(dir)


main()
