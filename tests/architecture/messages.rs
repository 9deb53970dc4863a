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
use crate::source::{Token, tokens};

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

/// What makes the texts that a function writes.
#[derive(Debug)]
enum Maker {
    /// An item of a file: a function, a constant, or a type's `Display`.
    Item(&'static str, &'static str),
    /// Calls of a function, in files below this folder.
    Calls(&'static str, &'static str),
}
use Maker::{Calls, Item};

/// Functions that name a severe level and have no text: what makes their texts. A function without
/// makers writes nothing, or only what a script or the configuration gives it.
const ELSEWHERE: &[(&str, &str, &[Maker])] = &[
    // Levels as values.
    ("log/directive.rs", "level", &[]),
    ("log/flood.rs", "judge", &[]),
    ("log/level.rs", "-", &[]),
    ("log/line.rs", "empty", &[]),
    ("log/syslog.rs", "level", &[Item("log/lib.rs", "complain")]),
    ("http/modules/limit_req/refusal.rs", "default", &[]),
    ("http/modules/limit_req/refusal.rs", "log_level", &[]),
    (
        "http/modules/limit_req/mod.rs",
        "delay_level",
        &[Item("http/modules/limit_req/mod.rs", "reject"), Item("values/limit_conn.rs", "take")],
    ),
    ("stream/settings.rs", "new", &[]),
    ("stream/directives.rs", "-", &[]),
    ("server/cycle.rs", "error_log", &[]),
    // Errors of the configuration.
    ("server/cycle.rs", "log_error", &[]),
    // What scripts write.
    ("http/modules/lua/api/log.rs", "level", &[]),
    // Texts of errors.
    ("values/regex.rs", "decide", &[Item("values/regex.rs", "gave_up")]),
    ("http/modules/route.rs", "handler", &[Item("values/regex.rs", "gave_up")]),
    (
        "values/log/writer.rs",
        "complain",
        &[Item("values/log/writer.rs", "send"), Item("values/log/writer.rs", "write_lines")],
    ),
    (
        "upstream/fault.rs",
        "securing",
        &[Item("tls/hello.rs", "HandshakeError"), Item("tls/verifier.rs", "verify_server_cert")],
    ),
    ("upstream/fault.rs", "unsecured", &[Item("ssl/load.rs", "LoadError")]),
    ("resolver/lib.rs", "tell", &[Calls("tell", "resolver")]),
    ("mail/session.rs", "fail", &[Calls("fail", "mail")]),
    ("mail/serve.rs", "no_header", &[Item("proto/proxy_protocol.rs", "HeaderError")]),
    (
        "mail/auth_http.rs",
        "exchange",
        &[Item("mail/auth_http.rs", "timeout_text"), Item("mail/serve.rs", "unreachable")],
    ),
    ("mail/upstream.rs", "not_connected", &[Item("mail/serve.rs", "unreachable")]),
    ("ssl/server/accept.rs", "level", &[Item("ssl/load.rs", "LoadError")]),
    ("ssl/ocsp/clients.rs", "status", &[Item("tls/x509/ocsp.rs", "OcspError")]),
    ("ssl/ocsp/clients.rs", "named", &[Item("ssl/ocsp/responder.rs", "ResponderError")]),
    ("ssl/ocsp/staple.rs", "renew", &[Item("tls/x509/ocsp.rs", "OcspError")]),
    ("ssl/ocsp/fetch.rs", "run", &[Item("ssl/ocsp/fetch.rs", "FetchError")]),
    ("http/modules/index.rs", "search", FILE),
    ("http/modules/static_.rs", "refuse", FILE),
    ("http/modules/rewrite/run.rs", "file_holds", FILE),
    ("http/core/try_files.rs", "search", FILE),
    ("http/files/mod.rs", "check_links", FILE),
    ("http/files/directory.rs", "refuse", &[Item("http/files/directory.rs", "log")]),
    ("http/files/directory.rs", "entries", &[Item("http/files/directory.rs", "log")]),
    ("http/files/disk.rs", "carry", DISK),
    ("http/files/disk.rs", "copy_file", DISK),
    ("http/files/disk.rs", "copy_over", DISK),
    ("http/files/disk.rs", "entries", DISK),
    ("http/files/disk.rs", "link_info", DISK),
    ("http/modules/dav/tree.rs", "target_info", DISK),
    (
        "http/modules/slice_filter.rs",
        "fail",
        &[Item("http/modules/slice_filter.rs", "header_filter")],
    ),
    ("http/modules/dav/mod.rs", "refuse", &[Calls("refuse", "http/modules/dav")]),
    ("http/modules/lua/phases.rs", "perform", SCRIPTS),
    ("http/modules/lua/handshake.rs", "perform", SCRIPTS),
    ("http/modules/lua/session/phases.rs", "load", SCRIPTS),
    ("http/modules/lua/to_server.rs", "perform", SCRIPTS),
    ("http/modules/lua/start.rs", "start", SCRIPTS),
    ("http/modules/lua/vm.rs", "run_and_tell", SCRIPTS),
    (
        "http/modules/lua/api/socket.rs",
        "tell_failed",
        &[Item("http/modules/lua/socket/error.rs", "in_log")],
    ),
    (
        "http/modules/lua/run/subject.rs",
        "log",
        &[
            Calls("log", "http/modules/lua/run/subject.rs"),
            Item("http/modules/lua/run.rs", "coroutine_failed"),
            Item("http/modules/lua/run.rs", "coroutine_returned"),
            Item("http/modules/lua/run.rs", "wait"),
        ],
    ),
    (
        "http/modules/ssi_filter/commands.rs",
        "read",
        &[Item("http/modules/ssi_filter/parser.rs", "unexpected")],
    ),
    (
        "http/modules/charset_filter/mod.rs",
        "header_filter",
        &[Item("http/modules/charset_filter/mod.rs", "no_map")],
    ),
    (
        "http/upstream/fault.rs",
        "complain",
        &[
            Calls("complain", "http/upstream"),
            Item("http/upstream/protocol.rs", "AnswerError"),
            Item("proto/http1/response.rs", "ResponseError"),
            Item("proto/fastcgi.rs", "RecordError"),
            Item("upstream/reply.rs", "BadReply"),
            Item("http/modules/fastcgi/protocol.rs", "FastCgiError"),
            Item("http/modules/memcached.rs", "MemcachedError"),
            Item("http/upstream/http2/message.rs", "MessageError"),
        ],
    ),
    ("http/upstream/protocol.rs", "level", &[Item("http/upstream/protocol.rs", "OutgoingError")]),
    ("http/body/error.rs", "level", &[Item("http/body/error.rs", "RequestBodyError")]),
    ("http/connection/handshake.rs", "say", &[Item("proto/proxy_protocol.rs", "HeaderError")]),
    ("server/boot.rs", "send_signal", &[Item("server/pidfile.rs", "text")]),
    ("server/cycle.rs", "open_logs", &[Item("server/cycle.rs", "open_failed")]),
    ("server/cycle.rs", "open_zones", &[Item("zone/declare.rs", "ZoneError")]),
    ("server/trial.rs", "run", &[Item("server/trial.rs", "TrialError")]),
    ("server/worker/mod.rs", "new", &[Item("engine/files/pool.rs", "push")]),
];
const DISK: &[Maker] = &[Item("http/files/disk.rs", "broken")];
const FILE: &[Maker] = &[Item("http/files/mod.rs", "log")];
const SCRIPTS: &[Maker] = &[
    Item("http/modules/lua/vm.rs", "StartError"),
    Item("http/modules/lua/vm.rs", "ScriptError"),
    Item("http/modules/lua/script.rs", "Unloadable"),
];

/// Texts of these functions that are written at lower levels, or are no messages.
const NOT_SEVERE: &[&str] = &[
    "... answers were taken out of cache \"...\"",
    "... disconnected, bytes from/to client:.../..., bytes from/to upstream:.../...",
    "100 Continue could not be sent",
    "cannot load certificate: its variable is empty, there is none yet",
    "client intended to send body data larger than declared",
    "client prematurely closed stream",
    "client prematurely closed stream: only ... out of ... bytes of request body received",
    "client sent less body data than expected: ... out of ... bytes of request body received",
    "for ... of ... ms the event loop waited for a processor, at ...",
    "has no reader, its lines are dropped until the logs are reopened",
    "it will be tried again, and spans beyond otel_exporter's batches are dropped",
    "peer is healthy, ...",
    "prereading client data",
    "reading from",
    "sending to",
    "signal process started",
    "timed out (110: Connection timed out)",
    "the pipe \"...\" ...",
    "waited for a processor",
    "was held up",
];

/// The tokens of a file, with its brackets matched and without its inline tests.
struct Code {
    tokens: Vec<Token>,
    /// The end of each bracket that opens.
    ends: BTreeMap<usize, usize>,
}

/// A function, a constant or an implementation: its name, and its first and last token.
type Block = (String, usize, usize);

impl Code {
    fn read(text: &str) -> Code {
        let tokens = tokens(text);
        let (mut ends, mut open) = (BTreeMap::new(), Vec::new());
        for (n, token) in tokens.iter().enumerate() {
            match token {
                Token::Sign('(' | '[' | '{') => open.push(n),
                Token::Sign(')' | ']' | '}') => {
                    ends.extend(open.pop().map(|begin| (begin, n)));
                }
                _ => {}
            }
        }
        let mut code = Code { tokens, ends };
        code.leave_tests_out();
        code
    }

    fn word(&self, n: usize) -> Option<&str> {
        match self.tokens.get(n) {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn is(&self, n: usize, sign: char) -> bool {
        self.tokens.get(n) == Some(&Token::Sign(sign))
    }

    /// `#[cfg(test)] mod tests { ... }`
    fn leave_tests_out(&mut self) {
        let words = ["cfg", "(", "test", ")", "]", "mod"];
        let starts = |code: &Code, n: usize| {
            words.iter().enumerate().all(|(i, word)| match code.tokens.get(n + i) {
                Some(Token::Word(found)) => found == word,
                Some(Token::Sign(found)) => found.to_string() == *word,
                _ => false,
            })
        };
        let blocks: Vec<(usize, usize)> = (0..self.tokens.len())
            .filter(|n| starts(self, *n))
            .filter_map(|n| Some((n + 7, *self.ends.get(&(n + 7))?)))
            .collect();
        for (begin, end) in blocks {
            self.tokens[begin..=end].fill(Token::Sign(';'));
            self.ends.retain(|at, _| !(begin..=end).contains(at));
        }
    }

    /// The brackets around a token, the innermost first.
    fn around(&self, n: usize) -> impl Iterator<Item = (usize, usize)> {
        let all = self.ends.range(..n).rev().filter(move |(_, end)| **end > n);
        all.map(|(begin, end)| (*begin, *end))
    }

    /// Blocks that begin with this keyword; the name is the last word before the block, or behind `fn`.
    fn blocks(&self) -> Vec<Block> {
        let mut all = Vec::new();
        for n in 0..self.tokens.len() {
            let keyword = self.word(n).unwrap_or_default();
            if !["fn", "impl", "const", "static"].contains(&keyword) {
                continue;
            }
            // `impl` in a type is no item.
            let is_item = n == 0
                || matches!(self.tokens[n - 1], Token::Sign(';' | '{' | '}' | ']'))
                || self.word(n - 1) == Some("unsafe");
            if keyword == "impl" && !is_item {
                continue;
            }
            let mut at = n + 1;
            let mut name = self.word(at).unwrap_or_default().to_owned();
            while at < self.tokens.len() && !self.is(at, '{') && !self.is(at, ';') {
                if keyword == "impl" && self.word(at) == Some("for") {
                    name = self.word(at + 1).unwrap_or_default().to_owned();
                }
                // Arguments and types are no body.
                at = match self.ends.get(&at) {
                    Some(end) if keyword == "fn" || keyword == "impl" => end + 1,
                    _ => at + 1,
                };
            }
            let end = self.ends.get(&at).copied().unwrap_or(at);
            all.push((name, n, end));
        }
        all
    }

    /// The texts of what the texts of a call insert, if its function makes them: `let text = "...";`
    fn inserted(&self, call: (usize, usize), function: (usize, usize)) -> Vec<String> {
        let texts = self.tokens[call.0..=call.1].iter().filter_map(|token| match token {
            Token::Text(text) => Some(text.as_str()),
            _ => None,
        });
        let names: BTreeSet<&str> = texts.flat_map(names).collect();
        let mut all = Vec::new();
        for n in function.0..call.0 {
            let named =
                self.word(n) == Some("let") && self.word(n + 1).is_some_and(|w| names.contains(w));
            if named {
                let mut at = n + 1;
                while at < call.0 && !self.is(at, ';') {
                    at = self.ends.get(&at).map_or(at + 1, |end| end + 1);
                }
                all.extend(self.texts(n, at));
            }
        }
        all
    }

    /// The texts between two tokens that have words.
    fn texts(&self, begin: usize, end: usize) -> Vec<String> {
        let inside = self.tokens.get(begin..=end.min(self.tokens.len() - 1)).unwrap_or_default();
        let texts = inside.iter().filter_map(|token| match token {
            Token::Text(text) => Some(fixed(text)),
            _ => None,
        });
        texts.filter(|text| letters(text) > 1).collect()
    }
}

/// The names that a text inserts: `{text}`, `{size:?}`.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let holes = text.split('{').skip(1).filter_map(|rest| rest.split(['}', ':']).next());
    holes.filter(|name| !name.is_empty())
}

/// A text as it is written, with a hole for each thing that it inserts.
fn fixed(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' => match rest.next() {
                Some('\n') => while rest.next_if(|c| c.is_whitespace()).is_some() {},
                Some('n' | 'r' | 't') => out.push(' '),
                Some(c) => out.push(c),
                None => {}
            },
            '{' if rest.next_if_eq(&'{').is_some() => out.push('{'),
            '}' if rest.next_if_eq(&'}').is_some() => out.push('}'),
            '{' => {
                while rest.next_if(|c| *c != '}').is_some() {}
                rest.next();
                out.push_str(HOLE);
            }
            c => out.push(c),
        }
    }
    out
}

fn letters(text: &str) -> usize {
    text.chars().filter(|c| c.is_alphabetic()).count()
}

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
