//! Pages that come from tables are the tables' current state.

#![expect(clippy::disallowed_methods, reason = "the pages are written where that is asked for")]

// The fuzzing build of the crate's targets links this test, too.
use bolero as _;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

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

/// Between two marks stand the lists of all metrics, each with name, type, labels and meaning.
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
fn tests_in_the_last_column_of_a_row_exist() {
    let functions = functions();
    for page in ["docs/reliability-tests.md", "docs/differences.md", "SECURITY.md"] {
        for row in rows(&read(page)) {
            let column = row.trim_end_matches(['|', ' ']).rsplit("| ").next().unwrap_or_default();
            assert!(
                page != "docs/differences.md" || column.contains('`'),
                "{page}: no test shows {row}"
            );
            for name in column.split('`').skip(1).step_by(2) {
                assert!(functions.contains(name), "{page}: no test `{name}`");
            }
        }
    }
}

/// A paragraph, an item or a table of a page names its tests in a comment that readers do not see.
#[test]
fn tests_in_the_comments_of_pages_exist() {
    let functions = functions();
    let (mut claims, mut names) = (0, 0);
    for page in pages() {
        let text = read(&page);
        for comment in text.split("<!-- ").skip(1).filter_map(|rest| rest.split("-->").next()) {
            let Some((_, list)) = comment.split_once("tests: ") else { continue };
            claims += 1;
            for name in list.split(',').map(str::trim) {
                assert!(functions.contains(name), "{page}: no test {name:?}");
                names += 1;
            }
        }
    }
    assert!(claims > 300 && names > 700, "{claims} claims name {names} tests");
}

/// docs/reliability.md lists the promises. A comment with tests follows each item; one behind the table names each row.
#[test]
fn each_promise_names_its_tests() {
    let page = read("docs/reliability.md");
    let promises = page.split("\n## How this is tested").next().unwrap_or_default();
    let mut count = 0;
    for (line, next) in promises.lines().zip(promises.lines().skip(1)) {
        if line.starts_with("- ") {
            assert!(
                next.starts_with("  <!-- tests: "),
                "docs/reliability.md: no test for {line:?}"
            );
            count += 1;
        }
    }
    // A long comment has several lines.
    let joined = promises.split_whitespace().collect::<Vec<_>>().join(" ");
    for row in rows(promises) {
        let what = row[2..].split(" | ").next().unwrap_or_default().replace('`', "");
        assert!(joined.contains(&format!("<!-- {what}; tests: ")), "no test for {what:?}");
        count += 1;
    }
    assert!(count > 20, "{count}");
}

/// A longer line is a cell that cannot be read in a table, or a paragraph that should be several.
#[test]
fn no_line_of_a_page_is_longer_than_600_characters() {
    for page in pages() {
        for (number, line) in read(&page).lines().enumerate() {
            let length = line.chars().count();
            assert!(length <= 600, "{page}:{}: {length} characters", number + 1);
        }
    }
}

/// Pages for users name the thing: a loop, a connection, a client.
#[test]
fn pages_name_things_instead_of_whoever() {
    let words = ["whoever", "whom", "somebody", "anybody", "nobody"];
    let mut found = Vec::new();
    for page in pages().iter().filter(|page| page.starts_with("docs/")) {
        let mut in_example = false;
        for (number, line) in read(page).lines().enumerate() {
            in_example ^= line.starts_with("```");
            // A name in backticks, such as the user `nobody`, does not count.
            let prose: String = line.split('`').step_by(2).collect();
            let mut said = prose.split(|c: char| !c.is_alphanumeric() && c != '_');
            if !in_example && said.any(|word| words.contains(&word.to_lowercase().as_str())) {
                found.push(format!("{page}:{}: {line}", number + 1));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A walk of CONTRIBUTING.md: its words, and the files that its steps name.
fn walks() -> Vec<(Vec<String>, Vec<String>)> {
    let page = read("CONTRIBUTING.md");
    let text = page.split("\n## Five walks\n").nth(1).unwrap();
    let text = text.split("\n## ").next().unwrap();
    let quoted = |text: &str| -> Vec<String> {
        text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let walk = |walk: &str| {
        let (heading, steps) = walk.split_once('\n').unwrap();
        let paths = quoted(steps)
            .into_iter()
            .filter(|quoted| quoted.contains('/') && !quoted.contains(' ') && quoted.contains('.'));
        (quoted(heading), paths.collect())
    };
    text.split("\n### ").skip(1).map(walk).collect()
}

/// Whether a text has a word, and not only as a part of another one.
fn has_word(text: &str, word: &str) -> bool {
    let is_inside = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(is_inside) && !after.starts_with(is_inside)
    })
}

/// The code of all crates without its tests, by path.
fn product_files(directory: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        if name.contains("/tests") || name.contains("fuzz") {
            continue;
        }
        if path.is_dir() {
            product_files(&path, files);
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            files.push((name, code.to_owned()));
        }
    }
}

#[test]
fn walks_name_each_file_that_knows_the_thing() {
    let mut files = Vec::new();
    product_files(&root().join("crates"), &mut files);
    let walks = walks();
    assert_eq!(walks.len(), 5);
    for (words, paths) in walks {
        for path in &paths {
            let at = root().join(path);
            assert!(at.exists(), "the walk of {words:?} names {path}, which does not exist");
            if at.is_dir() || path.ends_with("directives.md") || path.ends_with("secure_link.rs") {
                continue;
            }
            let text = format!("{path}{}", read(path)).to_lowercase();
            assert!(
                words.iter().any(|word| text.contains(&word.to_lowercase())),
                "the walk of {words:?} names {path}, which does not know it"
            );
        }
        for (name, code) in &files {
            assert!(
                paths.contains(name) || !words.iter().any(|word| has_word(code, word)),
                "{name} knows one of {words:?}, and the walk in CONTRIBUTING.md does not name it"
            );
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap()
}

/// The pages for readers: those of docs/, and those at the root.
fn pages() -> Vec<String> {
    let mut pages = Vec::new();
    for directory in ["", "docs/"] {
        for entry in fs::read_dir(root().join(directory)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                pages.push(format!("{directory}{name}"));
            }
        }
    }
    assert!(pages.len() > 30, "{pages:?}");
    pages
}

/// The rows of all tables of a page, without their heads.
fn rows(page: &str) -> impl Iterator<Item = &str> {
    let lines = page.lines().zip(page.lines().skip(1).chain([""]));
    lines
        .filter(|(line, next)| {
            line.starts_with("| ") && !next.starts_with("|---") && !line.starts_with("|---")
        })
        .map(|(line, _)| line)
}

/// The names of all functions of the workspace and its tests.
fn functions() -> HashSet<String> {
    let mut code = String::new();
    for directory in ["tests", "crates"] {
        read_code(&root().join(directory), &mut code);
    }
    let behind = code.split("fn ").skip(1);
    behind.filter_map(|rest| rest.split_once('(').map(|(name, _)| name.to_owned())).collect()
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
    let kinds = ["fn ", "struct ", "enum ", "trait ", "mod ", "type "];
    let defined: HashSet<&str> = kinds.iter().flat_map(|kind| names_behind(&code, kind)).collect();
    let is_defined = |name: &str| defined.contains(name);
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

#[test]
fn files_and_folders_that_the_architecture_names_are_there() {
    let (page, mut names) = (read("ARCHITECTURE.md"), 0);
    for name in page.split('`').skip(1).step_by(2) {
        // `crates/x` stands for any of them, `prelude/session.lua` is beside the file that is named before it.
        let is_name = !name.contains([' ', '<', '*']) && name.contains('/');
        if !is_name || ["crates/x", "prelude/session.lua", "client/"].contains(&name) {
            continue;
        }
        names += 1;
        let there = ["", "crates", "crates/http/src"];
        let there = there.iter().any(|at| root().join(at).join(name).exists());
        assert!(there, "ARCHITECTURE.md: no {name}");
    }
    assert!(names > 40, "{names}");
}

/// The names that follow this word.
fn names_behind<'c>(code: &'c str, word: &str) -> impl Iterator<Item = &'c str> {
    code.split(word).skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        rest.get(..end).filter(|_| rest[end..].starts_with(['(', '<', ' ', ';']))
    })
}

fn is_room(root: &Path, name: &str) -> bool {
    root.join("crates").join(name).is_dir()
}
