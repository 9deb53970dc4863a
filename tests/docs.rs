//! Pages that come from tables are the tables' current state.

#![expect(clippy::disallowed_methods, reason = "the pages are written where that is asked for")]

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
fn what_the_page_of_claims_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut code = String::new();
    for directory in ["tests", "crates"] {
        read_code(&root.join(directory), &mut code);
    }
    let text = fs::read_to_string(root.join("docs/claims.md")).unwrap();
    let (mut without, mut rows) = (0, 0);
    for part in text.split("\n## ").skip(1) {
        let page = part.lines().next().unwrap_or_default();
        let begins = claims_of(&fs::read_to_string(root.join("docs").join(page)).unwrap());
        let mut rest = begins.iter();
        let of_page = part.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
        for row in of_page.filter(|row| !row.is_empty()) {
            let cells = row.trim_matches(['|', ' ']).split_once(" | ");
            let (claim, held) = cells.unwrap_or_else(|| panic!("docs/claims.md: {row}"));
            let is_there = !claim.is_empty() && rest.any(|begin| begin.starts_with(claim));
            assert!(
                is_there,
                "docs/{page} has nothing that begins with {claim:?}, or it stands earlier"
            );
            rows += 1;
            if held.starts_with("no test: ") {
                continue;
            }
            let mut tests = held.split('`').skip(1).step_by(2).peekable();
            assert!(tests.peek().is_some(), "docs/claims.md: no test holds {claim:?}");
            for name in tests {
                assert!(code.contains(&format!("fn {name}(")), "docs/claims.md: no test `{name}`");
            }
        }
        without += begins.len();
    }
    println!("{rows} of {without} claims have rows");
    assert!(rows > 200, "{rows}");
}

/// How the paragraphs, items of lists and tables of a page begin, without their marks.
fn claims_of(page: &str) -> Vec<String> {
    let (mut claims, mut in_example, mut within) = (Vec::new(), false, false);
    for line in page.lines() {
        let fence = line.trim_start().starts_with("```");
        in_example ^= fence;
        let item = line.strip_prefix("- ").or_else(|| {
            let number = line.split_once(". ")?;
            number.0.bytes().all(|byte| byte.is_ascii_digit()).then_some(number.1)
        });
        let is_text =
            !line.trim().is_empty() && !line.starts_with(['#']) && !line.starts_with("    ");
        if fence || in_example || !is_text {
            within = false;
            continue;
        }
        if !within || item.is_some() {
            let plain = item.unwrap_or(line).replace(['`', '*', '|'], "");
            claims.push(plain.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        within = true;
    }
    claims
}

#[test]
fn what_no_crate_may_call_no_crate_may_call() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rules = |file: &str| {
        let text = fs::read_to_string(root.join(file)).unwrap();
        let lines = text.lines().filter(|line| line.contains("path ="));
        lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    // Clippy takes a crate's own file instead of the one for all.
    for file in ["crates/http/clippy.toml", "crates/server/clippy.toml"] {
        let own = rules(file);
        for rule in rules("clippy.toml") {
            assert!(own.contains(&rule), "{file} lacks {rule}");
        }
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
