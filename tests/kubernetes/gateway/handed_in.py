"""The report of the conformance suite as kubernetes-sigs/gateway-api takes it: whose it is, the names of its files, and the page beside it."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[3]
NAME = "weir"


def address():
    """The project's page: `repository` of Cargo.toml."""
    return re.search(r'^repository = "(\S+)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]


def contact():
    """The address of those who maintain the project: that of the packages."""
    return re.search(r'^maintainer = ".* <(\S+)>"', (ROOT / "crates/weir/Cargo.toml").read_text(), re.M)[1]


def implementation(version):
    """What the suite writes into the report."""
    return {"organization": NAME, "project": NAME, "version": version, "contact": [contact()], "url": address()}


def placeholder():
    """Whether there is no public address yet: the domain is the one that never exists."""
    return any(re.search(r"\.invalid\b", text) for text in (address(), contact()))


def problems(report):
    """What keeps a report from being taken."""
    found = ["the project has no public address yet: set repository in Cargo.toml and maintainer in crates/weir/Cargo.toml"] if placeholder() else []
    url = field(report, "url")
    if not re.match(r"https://[^/\s]+/", url):
        found.append(f"the url is no address of a page: {url}")
    if not re.fullmatch(r"v?\d+\.\d+\.\d+\S*", field(report, "version")):
        found.append("the version is none of semver")
    results = re.findall(r"^ +result: (\w+)$", report, re.M)
    if not results or set(results) != {"success"}:
        found.append(f"results: {results}")
    return found


def field(report, name):
    return re.search(rf'^ *{name}: "?([^"\n]+)"?$', report, re.M)[1]


def write(folder, report):
    """The folder of this implementation, with the report as the suite has written it; its path."""
    channel, api, mode, version = (field(report, name) for name in ("gatewayAPIChannel", "gatewayAPIVersion", "mode", "version"))
    place = pathlib.Path(folder) / re.match(r"v\d+\.\d+", api)[0] / f"{NAME}-{NAME}"
    place.mkdir(parents=True, exist_ok=True)
    file = f"{channel}-{version}-{mode}-report.yaml"
    (place / file).write_text(report)
    (place / "README.md").write_text(f"""# weir

weir is a web server, proxy and cache that reads nginx.conf. `weir-ingress` beside it serves Ingresses and Gateway API from the same configuration, without reloads.

## Table of Contents

| API channel | Implementation version | Mode | Report |
|-------------|------------------------|------|--------|
| {channel} | [{version}]({address()}) | {mode} | [{version} report](./{file}) |

## Reproduce

The suite runs on one machine with Linux, root, Rust, Go, etcd, openssl and Python 3. It needs no cluster: an API server is built from its Go module.

```shell
git clone {address()} weir && cd weir
git checkout v{version}
WEIR_REPORT=report.yaml tests/kubernetes/gateway/run
cat report.yaml
```
""")
    return place
