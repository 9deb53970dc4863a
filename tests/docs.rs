//! Pages that come from tables are the tables' current state.

use std::fs;
use std::path::Path;

/// Set to anything, it writes the pages instead of comparing them.
const WRITE: &str = "WEIR_WRITE_DOCS";

#[test]
fn the_page_of_directives_is_what_the_tables_say() {
    let page = weir_conf::directives_page(&weir_server::built, &weir_server::help);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/directives.md");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &page).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    let differs = there.lines().zip(page.lines()).find(|(old, new)| old != new);
    assert!(
        there == page,
        "docs/directives.md is not current: {WRITE}=1 cargo test -p weir-server --test docs \
         writes it.\nThe first line that differs: {differs:?}"
    );
}
