# The usual commands. `just` alone lists them.

default:
    @just --list

# Build and run on the embedded configuration.
run:
    cargo run --release

# All tests.
test:
    cargo test --workspace

# Format, lints, docs and tests, as CI does.
ci:
    .ci/run

# A minute of fuzzing for each target: `just fuzz 600 request_head` for ten of one (needs cargo-bolero).
fuzz *ARGS:
    .ci/fuzz {{ARGS}}

# One course of the simulated world, exactly as it was: `just sim 7`, with WEIR_TRACE=1 to see what happens.
sim SEED:
    WEIR_SEED={{SEED}} cargo test --profile fuzz -p weir-sim --test world

# So many fresh courses of it.
sim-many N:
    WEIR_COURSES={{N}} cargo test --profile fuzz -p weir-sim --test world

# Half an hour of requests of all kinds from one seed: connections, descriptors and memory stay as they were.
soak SEED:
    WEIR_SEED={{SEED}} WEIR_SOAK=1800 cargo test -p weir --test http2 nothing_is_kept -- --nocapture

# Ten minutes of every load: health stays green.
green:
    cargo build --release
    WEIR_GREEN=600 WEIR_BINARY=${CARGO_TARGET_DIR:-$PWD/target}/release/weir cargo test -p weir --test health nothing_is_wrong -- --nocapture

# Another client's patience while a line is full, beside nginx, for each place that reads or writes as long as it can.
line-rate:
    cargo build --release
    WEIR_TABLE=1 WEIR_BINARY=${CARGO_TARGET_DIR:-$PWD/target}/release/weir cargo test -p weir --test line_rate -- --nocapture

# Licences, sources and known holes of what weir is built from (needs cargo-deny; --offline with a fetched database).
deny *ARGS:
    cargo deny {{ARGS}} check

# Ingresses at a real API server, which is built the first time (needs Go, etcd, openssl and Python): `just kubernetes canary` for some tests.
kubernetes *ARGS:
    tests/kubernetes/run {{ARGS}}

# The Helm charts by helm itself, at the same API server: objects, upgrades, mistakes in values, pods (needs what `kubernetes` needs, and root).
helm-check *ARGS:
    tests/kubernetes/helm {{ARGS}}

# Thousands of Ingresses that change all the time: how long changes take to traffic, and what is lost (needs what `kubernetes` needs):
# `just kubernetes-scale --sites 500 --endpoints 2000 --rate 10 --seconds 60`.
kubernetes-scale *ARGS:
    tests/kubernetes/scale {{ARGS}}

# Ten thousand invalid objects beside valid ones, then no API server for ten minutes (needs what `kubernetes` needs; 20 minutes):
# `just kubernetes-faults --wrong 1000 --away 60`.
kubernetes-faults *ARGS:
    tests/kubernetes/faults {{ARGS}}

# Gateway API's own conformance suite against weir (needs what `kubernetes` needs, and root): `just conformance-gateway -run-test=HTTPRouteWeight` for one test.
conformance-gateway *ARGS:
    tests/kubernetes/gateway/run {{ARGS}}

# The end-to-end specs of ingress-nginx as tables, against weir-ingress (needs root): `just conformance-ingress cors` for the areas and specs with a word.
conformance-ingress *ARGS:
    tests/kubernetes/ingress_nginx/run {{ARGS}}

# Make docs/directives.md and the lists of docs/metrics.md from the tables.
docs:
    WEIR_WRITE_DOCS=1 cargo test -p weir-server --test docs

# Requests per second of server CPU beside nginx (needs nginx and wrk), kept under benches/results.
side-by-side:
    cargo build --release
    benches/side-by-side --save

# Cost, tail, memory and system calls beside each server that is installed: `just compare --save` keeps the run (docs/performance.md).
compare *ARGS:
    cargo build --release
    benches/compare {{ARGS}}

# What a request costs as a site grows, beside nginx.
growth *ARGS:
    cargo build --release
    benches/growth {{ARGS}}

# Where the processor time of a request goes, in weir and in its peers (needs perf): `just profile --work proxy`.
profile *ARGS:
    cargo build --release
    benches/profile {{ARGS}}

# Instructions a request (needs valgrind): `just instructions --check` fails where they grew, `--save` keeps new counts.
instructions *ARGS:
    cargo build --release
    benches/instructions {{ARGS}}

# The pictures of the documentation, anew (needs Chromium, and nginx for the tail).
pictures *ARGS:
    cargo build --release
    benches/pictures {{ARGS}}

# The published experiments, on this machine.
lab:
    cargo run --release -- lab run all
