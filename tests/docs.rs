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

/// Between two marks stand the tables of all metrics, each with name, type, labels and meaning.
#[test]
fn the_page_of_metrics_names_them_all() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let there = fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- tables -->\n", "<!-- end of tables -->");
    let from = there.find(begin).unwrap() + begin.len();
    let to = there.find(end).unwrap();
    let page = format!("{}{}{}", &there[..from], weir_metrics::tables(), &there[to..]);
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &page).unwrap();
        return;
    }
    let differs = there.lines().zip(page.lines()).find(|(old, new)| old != new);
    assert!(
        there == page,
        "docs/metrics.md is not current: {WRITE}=1 cargo test -p weir-server --test docs \
         writes it.\nThe first line that differs: {differs:?}"
    );
}

#[test]
fn tests_that_pages_name_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut code = String::new();
    for directory in ["tests", "crates"] {
        read_code(&root.join(directory), &mut code);
    }
    for page in ["docs/reliability.md", "docs/differences.md", "SECURITY.md"] {
        let text = fs::read_to_string(root.join(page)).unwrap();
        // The last column of each row.
        for row in text.lines().filter(|line| line.starts_with('|')) {
            let column = row.trim_end_matches(['|', ' ']).rsplit("| ").next().unwrap_or_default();
            let head = row.starts_with("|---") || row.starts_with("| what | nginx ");
            assert!(
                head || page != "docs/differences.md" || column.contains('`'),
                "{page}: no test shows {row}"
            );
            for name in column.split('`').skip(1).step_by(2) {
                assert!(code.contains(&format!("fn {name}(")), "{page}: no test `{name}`");
            }
        }
    }
}

#[test]
fn what_no_crate_may_call_no_crate_may_call() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rules = |file: &str| {
        let text = fs::read_to_string(root.join(file)).unwrap();
        let lines = text.lines().filter(|line| line.contains("path ="));
        lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    let own = rules("crates/http/clippy.toml");
    // Clippy takes a crate's own file instead of the one for all.
    for rule in rules("clippy.toml") {
        assert!(own.contains(&rule), "crates/http/clippy.toml lacks {rule}");
    }
}

/// All code below a directory.
fn read_code(directory: &Path, code: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_code(&path, code);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            code.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn names_on_a_requests_way_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let from = page.find("## One request's way").unwrap();
    let to = page.find("## Decisions").unwrap();
    let mut code = String::new();
    read_code(&root.join("crates"), &mut code);
    let kinds = ["fn", "struct", "enum", "trait", "mod", "type"];
    let is_defined = |name: &str| {
        let behind = |kind: &str, end: &str| code.contains(&format!("{kind} {name}{end}"));
        let ends = ["(", "<", " ", ";"];
        kinds.iter().any(|kind| ends.iter().any(|end| behind(kind, end)))
    };
    let directives = fs::read_to_string(root.join("docs/directives.md")).unwrap();
    let is_directive = |name: &str| directives.contains(&format!("`{name}`"));
    let mut names = 0;
    for name in page[from..to].split('`').skip(1).step_by(2) {
        names += 1;
        let there = match name.split_once("::") {
            Some(_) => name.split("::").all(|part| is_defined(part) || is_room(&root, part)),
            None if name.contains('/') || name.ends_with(".rs") => {
                ["crates", "crates/http/src"].iter().any(|at| root.join(at).join(name).exists())
            }
            None => is_room(&root, name) || is_defined(name) || is_directive(name),
        };
        assert!(there || name == "sendmsg", "ARCHITECTURE.md: no `{name}`");
    }
    assert!(names > 40, "{names}");
}

fn is_room(root: &Path, name: &str) -> bool {
    root.join("crates").join(name).is_dir()
}
