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

# Make docs/directives.md from the tables.
docs:
    WEIR_WRITE_DOCS=1 cargo test -p weir --test docs

# Compare accept policies from outside (needs wrk).
fair shape="12x1":
    benches/fair --shape {{shape}}
