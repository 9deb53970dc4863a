//! docs/troubleshooting.md has an entry for each message at `error` and above.
//!
//! The messages are read from the source. Each place that names a severe level is one of these:
//!
//! - a call with the text of the message among its arguments,
//! - a function that makes the text,
//! - a row of [`ELSEWHERE`], which names the items that make the text.
//!
//! So a new message, or a new place that writes one, fails this test until the page has it.
//! Errors of the configuration are told with their line and are no entries.
//! `WEIR_MESSAGES=1` prints all messages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::graph::Graph;
use crate::root;
use crate::source::Token;
use code::{Block, Code, letters};
use elsewhere::Maker::{self, Calls, Item};
use elsewhere::{ELSEWHERE, NOT_SEVERE};

mod code;
mod elsewhere;

const LEVELS: [&str; 4] = ["Error", "Crit", "Alert", "Emerg"];
/// Crates that are no server. They print to the terminal.
const TOOLS: &[&str] = &[
    "bench", "conf", "explain", "ingress", "inspect", "lab", "lint", "sim", "steer", "testkit",
    "top",
];
/// Stands for what a message inserts.
const HOLE: &str = "\u{1}";
/// The page's sign for it.
const DOTS: &str = "...";
/// The share of a message's letters that its entry must have.
const ENOUGH: f64 = 0.6;

/// A message has several words. What begins as a message goes on is a part of one.
fn is_message(text: &str) -> bool {
    let is_part = text.starts_with([' ', ',']) || text.starts_with("while ");
    letters(text) > 3 && text.trim().contains(' ') && !is_part
}

/// All messages, each with a place that writes it.
#[derive(Default)]
struct Messages {
    all: BTreeMap<String, String>,
    /// Places that name a severe level and have no text.
    unknown: BTreeSet<String>,
    /// Rows of the table that were needed.
    used: BTreeSet<(String, String)>,
}

impl Messages {
    fn add(&mut self, texts: Vec<String>, place: &str) {
        for text in texts {
            self.all.entry(text).or_insert_with(|| place.to_owned());
        }
    }
}

fn product() -> BTreeMap<String, Code> {
    let graph = Graph::read(&root().join("crates"));
    let files = graph.files.iter().filter(|file| !file.test_only);
    let files = files.filter(|file| !TOOLS.contains(&file.crate_name.as_str()));
    let read = |path: String, name: String| {
        let text = fs::read_to_string(root().join("crates").join(path)).unwrap();
        (name, Code::read(&text))
    };
    files
        .map(|file| {
            let (of, path) = (&file.crate_name, &file.path);
            read(format!("{of}/src/{path}"), format!("{of}/{path}"))
        })
        .collect()
}

fn messages() -> Messages {
    let files = product();
    let mut found = Messages::default();
    for (name, code) in &files {
        let blocks = code.blocks();
        for n in 0..code.tokens.len() {
            if names_level(code, n) {
                place(&files, &mut found, name, code, &blocks, n);
            }
        }
    }
    for text in NOT_SEVERE {
        let removed = found.all.remove(&text.replace(DOTS, HOLE));
        assert!(removed.is_some(), "no such text any more: {text:?}");
    }
    found
}

/// `Level::Error`, or `Error` in `log!(...)`
fn names_level(code: &Code, n: usize) -> bool {
    if !code.word(n).is_some_and(|word| LEVELS.contains(&word)) {
        return false;
    }
    let of_level = n > 1
        && code.tokens[n - 1] == Token::Colons
        && matches!(code.word(n - 2), Some("Level" | "Severity"));
    let in_macro = || {
        code.around(n).next().is_some_and(|(begin, _)| {
            code.is(begin, '(')
                && begin > 1
                && code.is(begin - 1, '!')
                && code.word(begin - 2) == Some("log")
        })
    };
    of_level || in_macro()
}

/// Adds what is written at a place that names a severe level.
fn place(
    files: &BTreeMap<String, Code>,
    found: &mut Messages,
    name: &str,
    code: &Code,
    blocks: &[Block],
    n: usize,
) {
    let function =
        blocks.iter().filter(|(_, begin, end)| *begin < n && n < *end).max_by_key(|b| b.1);
    let (function, begin, end) =
        function.map_or(("-", 0, 0), |(name, begin, end)| (name.as_str(), *begin, *end));
    let at = format!("{name}, {function}");
    let row = ELSEWHERE.iter().find(|(file, of, _)| *file == name && *of == function);
    if let Some((file, of, makers)) = row {
        found.used.insert(((*file).to_owned(), (*of).to_owned()));
        for maker in *makers {
            let texts = made(files, maker);
            if texts.is_empty() {
                found.unknown.insert(format!("{at}: {maker:?} makes no text"));
            }
            found.add(texts, &at);
        }
        if makers.is_empty() {
            return;
        }
    }
    // The call around the level, up to the next block, with what it inserts.
    let calls = code.around(n).take_while(|(begin, _)| !code.is(*begin, '{'));
    let said = calls.map(|(from, to)| {
        let mut texts = code.texts(from, to);
        if !texts.is_empty() {
            texts.extend(code.inserted((from, to), (begin, end)));
        }
        texts
    });
    let mut said = said.into_iter().find(|texts| !texts.is_empty()).unwrap_or_default();
    said.retain(|text| is_message(text));
    if !said.is_empty() {
        return found.add(said, &at);
    }
    let made_here: Vec<String> =
        code.texts(begin, end).into_iter().filter(|text| is_message(text)).collect();
    if !made_here.is_empty() {
        found.add(made_here, &at);
    } else if row.is_none() {
        found.unknown.insert(at);
    }
}

/// The texts of a maker.
fn made(files: &BTreeMap<String, Code>, maker: &Maker) -> Vec<String> {
    let mut all = Vec::new();
    match maker {
        Item(file, item) => {
            let code = files.get(*file).unwrap_or_else(|| panic!("{file} is no file"));
            for (name, begin, end) in code.blocks() {
                if name == *item {
                    all.extend(code.texts(begin, end));
                }
            }
        }
        Calls(function, below) => {
            for (_, code) in files.iter().filter(|(name, _)| name.starts_with(below)) {
                for (begin, end) in &code.ends {
                    let called = *begin > 0 && code.word(begin - 1) == Some(function);
                    if called && *begin > 1 && code.word(begin - 2) != Some("fn") {
                        all.extend(code.texts(*begin, *end));
                    }
                }
            }
        }
    }
    all.retain(|text| is_message(text));
    all
}

/// An entry of the page: its patterns, and its lines.
struct Entry {
    patterns: Vec<String>,
    lines: usize,
}

/// Items of lists that begin with a pattern. The patterns end at the first colon outside of them.
fn entries(page: &str) -> Vec<Entry> {
    let mut all: Vec<Entry> = Vec::new();
    let (mut item, mut lines) = (String::new(), 0);
    let mut end = |item: &mut String, lines: &mut usize| {
        let parts: Vec<&str> = item.split('`').collect();
        let mut patterns = Vec::new();
        if item.starts_with("- `") {
            for pair in parts[1..].chunks(2) {
                patterns.push(pair[0].replace(DOTS, HOLE));
                if pair.get(1).is_none_or(|between| between.contains(':')) {
                    break;
                }
            }
            all.push(Entry { patterns, lines: *lines });
        }
        item.clear();
        *lines = 0;
    };
    for line in page.lines() {
        if line.starts_with("- ") || !line.starts_with("  ") {
            end(&mut item, &mut lines);
        }
        if line.starts_with("- ") || lines > 0 {
            let joint = if item.is_empty() { "" } else { " " };
            item = item + joint + line.trim_start();
            lines += 1;
        }
    }
    end(&mut item, &mut lines);
    all
}

/// Whether an entry's pattern stands for a message.
fn stands_for(pattern: &str, message: &str) -> bool {
    // What begins so, however it goes on.
    if let Some(prefix) = pattern.strip_suffix(HOLE).filter(|prefix| !prefix.contains(HOLE)) {
        return letters(prefix) > 3 && message.starts_with(prefix.trim_end());
    }
    // Whether a cause brings its parentheses is no difference.
    let bare = |text: &str| text.replace(&format!("({HOLE})"), HOLE);
    let (pattern, message) = (bare(pattern), bare(message));
    let mut rest = message.as_str();
    for piece in pattern.split(HOLE).filter(|piece| !piece.is_empty()) {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    letters(&pattern) as f64 > ENOUGH * letters(&message) as f64
}

#[test]
fn each_severe_message_has_an_entry_in_troubleshooting() {
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let (entries, found) = (entries(&page), messages());
    if std::env::var_os("WEIR_MESSAGES").is_some() {
        for (text, place) in &found.all {
            println!("{}\t{place}", text.replace(HOLE, DOTS));
        }
    }
    assert!(
        found.unknown.is_empty(),
        "their texts are made elsewhere, name where: {:#?}",
        found.unknown
    );
    for (file, function, _) in ELSEWHERE {
        let row = ((*file).to_owned(), (*function).to_owned());
        assert!(found.used.contains(&row), "{file} has no severe level in {function} any more");
    }
    assert!(found.all.len() > 200, "only {} messages were found", found.all.len());
    let patterns: Vec<&String> = entries.iter().flat_map(|entry| &entry.patterns).collect();
    let missing: Vec<String> = found
        .all
        .iter()
        .filter(|(text, _)| !patterns.iter().any(|pattern| stands_for(pattern, text)))
        .map(|(text, place)| format!("{} ({place})", text.replace(HOLE, DOTS)))
        .collect();
    assert!(missing.is_empty(), "docs/troubleshooting.md lacks: {missing:#?}");
    let no_longer: Vec<&&String> = patterns
        .iter()
        .filter(|pattern| !found.all.keys().any(|text| stands_for(pattern, text)))
        .collect();
    assert!(no_longer.is_empty(), "weir writes no such message: {no_longer:#?}");
    let long: Vec<&Vec<String>> =
        entries.iter().filter(|entry| entry.lines > 3).map(|entry| &entry.patterns).collect();
    assert!(long.is_empty(), "entries of more than three lines: {long:#?}");
}

#[test]
fn messages_are_read_from_calls_functions_and_makers() {
    let code = Code::read(
        r#"
        fn direct(r: &Request) { r.log(Level::Error, format_args!("disk \"{path}\" is full: {}", x)); }
        fn inserts() { let why = "it stands still"; log!(log, Emerg, None, "worker {pid} {why}"); }
        fn macros() { log!(log, Alert, None, "fork() failed {}", Cause(&e)); log!(log, Info, None, "fine here"); }
        fn indirect() {
            let level = if odd { Level::Crit } else { Level::Error };
            let text = "it is odd \
                        and long";
            r.log(level, text);
        }
        impl fmt::Display for Failure { fn fmt() { f.write_str("it broke") } }
        #[cfg(test)]
        mod tests { fn none() { log(Level::Error, "no message of tests"); } }
        "#,
    );
    let files = BTreeMap::from([("a/b.rs".to_owned(), code)]);
    let (code, mut found) = (&files["a/b.rs"], Messages::default());
    for n in (0..code.tokens.len()).filter(|n| names_level(code, *n)) {
        place(&files, &mut found, "a/b.rs", code, &code.blocks(), n);
    }
    let texts: Vec<&str> = found.all.keys().map(String::as_str).collect();
    assert_eq!(
        texts,
        [
            "disk \"\u{1}\" is full: \u{1}",
            "fork() failed \u{1}",
            "it is odd and long",
            "it stands still",
            "worker \u{1} \u{1}"
        ]
    );
    assert_eq!(made(&files, &Item("a/b.rs", "Failure")), ["it broke"]);
    assert!(stands_for("disk \"\u{1}\" is full", texts[0]) && !stands_for("is full", texts[0]));
    assert!(stands_for("disk \u{1}", texts[0]) && !stands_for("\u{1} failed", texts[0]));
    let page = "- `a b`, `c: d` and `e ... f`: it is so (`no pattern`).\n  More.\n\ntext\n- no entry `x`\n";
    let entries = entries(page);
    assert_eq!((entries.len(), entries[0].lines), (1, 2));
    assert_eq!(entries[0].patterns, ["a b", "c: d", "e \u{1} f"]);
}
