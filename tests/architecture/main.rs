//! The order of the crates, read from the imports of the product's files.
//!
//! `ARCHITECTURE.md` orders the crates and `crates/http/src/lib.rs` the folders of `http`. An arrow is a file that
//! names something of another file. `WEIR_ARROWS=1 cargo test -p weir-testkit --test architecture -- --nocapture`
//! prints the table, each arrow up and the files of the largest circles.

mod borrowed;
mod graph;
mod messages;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::graph::{Graph, Id};

/// The most files in one circle of imports.
const CIRCLE: usize = 12;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn workspace() -> Graph {
    Graph::read(&root().join("crates"))
}

fn wanted() -> bool {
    std::env::var_os("WEIR_ARROWS").is_some()
}

/// The levels of the crates, from the table in `ARCHITECTURE.md`; crates for tests have none.
fn crate_levels() -> BTreeMap<String, Option<u32>> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let (level, room) = (cells.next()?, cells.next()?);
        let room = room.strip_prefix('`')?.strip_suffix('`')?;
        Some((room.to_owned(), level.parse().ok()))
    });
    rows.collect()
}

/// The levels of http's folders, from the list in its `lib.rs`: `//! 2. words: `a`, `b``
fn folder_levels() -> BTreeMap<String, u32> {
    let text = fs::read_to_string(root().join("crates/http/src/lib.rs")).unwrap();
    let mut levels = BTreeMap::new();
    let mut level = None;
    for line in text.lines().map(|line| line.strip_prefix("//! ").unwrap_or_default()) {
        // A line of the list, or what follows of it.
        level = match line.split_once(". ").and_then(|(number, _)| number.parse().ok()) {
            None if !line.starts_with("   ") => None,
            None => level,
            number => number,
        };
        let Some(level) = level else { continue };
        for folder in line.split('`').skip(1).step_by(2) {
            levels.insert(folder.to_owned(), level);
        }
    }
    levels
}

/// Arrows between folders of `http`: all of them, and those that run up.
fn between_folders(graph: &Graph) -> (usize, Vec<(Id, Id)>) {
    let levels = folder_levels();
    let (mut all, mut up) = (0, Vec::new());
    for from in graph.of("http") {
        let Some(room) = graph.files[from].room() else { continue };
        let level = levels.get(room);
        assert!(level.is_some(), "crates/http/src/lib.rs gives {room} no level");
        for &to in &graph.arrows[from] {
            let target = &graph.files[to];
            let Some(other) = target.room().filter(|_| target.crate_name == "http") else {
                continue;
            };
            if other != room && !target.test_only {
                all += 1;
                if levels.get(other) > level {
                    up.push((from, to));
                }
            }
        }
    }
    (all, up)
}

#[test]
fn crates_name_lower_ones_only() {
    let (graph, levels) = (workspace(), crate_levels());
    let mut wrong = BTreeSet::new();
    for name in graph.crate_names() {
        let Some(level) = levels.get(name) else {
            panic!("ARCHITECTURE.md gives the crate {name} no level");
        };
        for id in graph.of(name) {
            for other in &graph.crates[id] {
                let fits = match (level, levels[other.as_str()]) {
                    (Some(level), Some(lower)) => lower < *level,
                    (None, _) => true,
                    (Some(_), None) => false,
                };
                if !fits {
                    let path = &graph.files[id].path;
                    wrong.insert(format!("crates/{name}/src/{path} names weir_{other}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn product_files_name_none_that_only_tests_have() {
    let graph = workspace();
    let mut wrong = Vec::new();
    for name in graph.crate_names() {
        for id in graph.of(name) {
            for &to in graph.arrows[id].iter().filter(|to| graph.files[**to].test_only) {
                let (file, test) = (&graph.files[id], &graph.files[to]);
                wrong.push(format!("crates/{name}/src/{} names {}", file.path, test.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn folders_of_http_name_lower_ones_only() {
    let graph = workspace();
    let (all, up) = between_folders(&graph);
    if wanted() {
        for (from, to) in &up {
            println!("up: {} -> {}", graph.files[*from].path, graph.files[*to].path);
        }
    }
    println!("http: {} of {all} arrows between folders run up", up.len());
    assert!(
        up.is_empty(),
        "{} arrows run up between folders of http; WEIR_ARROWS=1 lists them",
        up.len()
    );
}

#[test]
fn circles_of_imports_are_small() {
    let graph = workspace();
    let mut table = String::new();
    let mut wrong = Vec::new();
    for name in graph.crate_names() {
        let circle = graph.largest_circle(name);
        let files: Vec<_> = graph.of(name).map(|id| &graph.files[id]).collect();
        let lines: usize = files.iter().map(|file| file.lines).sum();
        let rooms: BTreeSet<_> = files.iter().filter_map(|file| file.room()).collect();
        let (rooms, files, circle_size) = (rooms.len(), files.len(), circle.len());
        let _ = writeln!(table, "| {name} | {rooms} | {files} | {lines} | {circle_size} |");
        if circle_size > CIRCLE && wanted() {
            let paths: Vec<_> = circle.iter().map(|id| graph.files[*id].path.as_str()).collect();
            println!("circle in {name}: {}", paths.join(" "));
        }
        if circle_size > CIRCLE {
            wrong.push(format!(
                "{name}: {circle_size} files in one circle, at most {CIRCLE} may be"
            ));
        }
    }
    println!("| crate | rooms | files | lines | largest circle |\n|---|---|---|---|---|\n{table}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A crate without examples in its comments does not look for any: that takes a second in every run of the tests.
#[test]
fn examples_in_comments_are_run_where_there_are_any() {
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let dir = entry.unwrap().path();
        if !dir.join("src/lib.rs").exists() {
            continue;
        }
        let mut files = Vec::new();
        rust_files(&dir.join("src"), &mut files);
        let has = files.iter().any(|file| has_example(&fs::read_to_string(file).unwrap()));
        let manifest = fs::read_to_string(dir.join("Cargo.toml")).unwrap();
        let looks = !manifest.contains("doctest = false");
        assert_eq!(has, looks, "`doctest` in the Cargo.toml of {}", dir.display());
    }
}

/// Whether a comment has a block of code that is no `text`.
fn has_example(source: &str) -> bool {
    let comment = |line: &str| {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
        text.trim_start().strip_prefix("```").map(str::to_owned)
    };
    let fences: Vec<String> = source.lines().filter_map(comment).collect();
    fences.iter().step_by(2).any(|kind| kind != "text")
}

fn rust_files(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
