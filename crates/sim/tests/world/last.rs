//! When all is over: what is left, and what the last clients still get.

use std::path::Path;

use crate::book::{Framing, Script};
use crate::client::OBJECTS;
use crate::course::{Course, SHORT};
use crate::pattern;
use crate::wire::{Came, Way, Wire};

/// When all is over, an answer comes within this time. It is shorter than the wait for another
/// request's lock of the cache.
const PATIENCE: u64 = 4_800_000_000;

/// A client that asks when all is over.
struct Last {
    wire: Wire,
    text: Vec<u8>,
}

impl Course {
    /// The number of open descriptors. With several workers, each may keep answers at hand that
    /// another one has removed, in memory or with their files.
    pub fn descriptors(&self) -> usize {
        let (cache, several) = (self.home.join("cache"), self.fate.config.processes > 1);
        let in_memory = |path: &Path| path.to_string_lossy().starts_with("/memfd:weir");
        let of_answer = |path: &Path| path.starts_with(&cache) || in_memory(path);
        let counts = |entry: &std::fs::DirEntry| match std::fs::read_link(entry.path()) {
            Ok(path) if several => !of_answer(&path),
            _ => true,
        };
        let all = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        all.filter(counts).count()
    }

    /// Checks that counters are back where they were, and no temporary file is left.
    pub fn look_what_is_left(&mut self) {
        // A killed worker leaves its temporary files, and its successor cannot know them.
        for name in ["body", "proxy"].iter().filter(|_| self.killed == 0) {
            let left = files_under(&self.home.join(name));
            if left > 0 {
                self.book.find(format!("{left} temporary files are left in {name}"));
            }
        }
        self.look_what_is_stored();
        let mut last = self.begin_at_last("/status", 0);
        let text = self.hear_at_last(&mut last, SHORT);
        let lines: Vec<&str> = text.lines().rev().take(4).collect();
        let alone = lines.first().is_some_and(|l| l.trim() == "Reading: 0 Writing: 1 Waiting: 0")
            && lines.get(3).is_some_and(|l| l.trim() == "Active connections: 1");
        if !alone {
            self.book.find(format!("one client asks who is there: {lines:?}"));
        }
    }

    /// Checks that the files that are kept are complete.
    fn look_what_is_stored(&mut self) {
        if self.fate.again {
            return;
        }
        let files = std::fs::read_dir(self.home.join("store/t")).into_iter().flatten().flatten();
        for file in files {
            let name = file.file_name().to_string_lossy().into_owned();
            let script = name.parse().ok().and_then(|id: u64| self.book.scripts.get(&id));
            let Some((id, script)) = name.parse().ok().zip(script) else {
                self.book.find(format!("a file {name} is left of what was to be stored"));
                continue;
            };
            // An answer that ends with its connection is taken for whole when the connection breaks
            // off.
            let torn = script.framing == Framing::Close && script.breaks.is_some();
            let bytes = std::fs::read(file.path()).unwrap_or_default();
            let whole = bytes.len() as u64 == script.len || torn;
            if !whole || pattern::first_wrong(id, 0, &bytes).is_some() {
                let what = format!("{} bytes of {} are stored", bytes.len(), script.len);
                self.book.doubt(id, false, format!("request {id} /t/{id}: {what}"));
            }
        }
    }

    /// As many requests are let in as before the first client came, and no more. Each cached object
    /// can be had.
    pub fn look_whether_all_is_given_back(&mut self) {
        if self.fate.accepts.is_some() {
            return;
        }
        (self.fate.broken_servers, self.last) = (false, true);
        for name in 0..OBJECTS {
            let path = format!("/c/{name}");
            let mut last = self.begin_at_last(&path, 0);
            let text = self.hear_at_last(&mut last, PATIENCE);
            if !answer(&text).starts_with("HTTP/1.1 200") {
                let begin = text.get(..200).unwrap_or(&text);
                self.book.find(format!("{path} cannot be had in the end: {begin:?}"));
            }
        }
        // What a killed worker held of limit_conn is never given back, as in nginx.
        let Some(limits) = self.fate.limits.filter(|_| self.killed == 0) else { return };
        let ask = |course: &mut Course| {
            course.asks += 1;
            let id = course.asks;
            course.book.scripts.insert(id, Script::plain(PATIENCE));
            let mut last = course.begin_at_last(&format!("/k/{id}"), id);
            let text = course.hear_at_last(&mut last, PATIENCE / 8);
            (last, text)
        };
        let mut let_in: Vec<Last> = (0..limits.most()).map(|_| ask(self).0).collect();
        let (_, refusal) = ask(self);
        let answers: Vec<String> =
            let_in.iter_mut().map(|last| self.hear_at_last(last, PATIENCE)).collect();
        let all = answers.iter().all(|text| text.starts_with("HTTP/1.1 200"));
        if !all || !refusal.starts_with("HTTP/1.1 50") {
            self.book.find(format!("{limits:?} are in the end {answers:?}, and {refusal:?}"));
        }
    }

    /// Sends a request without any disturbance.
    fn begin_at_last(&mut self, path: &str, id: u64) -> Last {
        let fd = self.connect().expect("a connection where there is room for all");
        let way = Way { piece: 64_000, delay: 0 };
        let mut wire = Wire::new(fd, way, way);
        wire.tls = self.fate.tls.then(|| self.secrets.connect(&mut self.dice, false));
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: h\r\nX-Ask: {id}\r\nConnection: close\r\n\r\n");
        wire.out.extend_from_slice(head.as_bytes());
        Last { wire, text: Vec::new() }
    }

    /// What the client has heard after that time.
    fn hear_at_last(&mut self, last: &mut Last, time: u64) -> String {
        let end = self.world.now() + time;
        let mut piece = Vec::new();
        while self.world.now() < end {
            while last.wire.has_more() && last.wire.send(&mut self.dice) {}
            self.rest_for(SHORT / 10);
            while let Came::Bytes(_) = last.wire.take(&mut self.dice, &mut piece) {
                last.text.append(&mut piece);
            }
        }
        String::from_utf8_lossy(&last.text).into_owned()
    }
}

fn files_under(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let count = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => files_under(&entry.path()),
        _ => 1,
    };
    entries.map(count).sum()
}

/// An answer without the interim ones before it, which the rules of RFC 9111 let pass.
fn answer(text: &str) -> &str {
    match text.split_once("\r\n\r\n") {
        Some((head, rest)) if head.starts_with("HTTP/1.1 1") => answer(rest),
        _ => text,
    }
}
