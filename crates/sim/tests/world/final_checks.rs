//! Final checks: what is left, and what the last clients still receive.

use std::path::Path;

use crate::client_request::OBJECTS;
use crate::course::{Course, SHORT};
use crate::pattern;
use crate::records::{Framing, Script};
use crate::wire::{Link, Received, Wire};

/// How long a final request may take. It is shorter than the timeout of the cache lock.
const FINAL_TIMEOUT: u64 = 4_800_000_000;

/// A client of the final checks.
struct FinalClient {
    wire: Wire,
    text: Vec<u8>,
}

impl Course {
    /// The number of open descriptors. With several workers, each may hold answers that another one
    /// has removed, in memory or in files. These do not count.
    pub fn descriptors(&self) -> usize {
        let (cache, several) = (self.home.join("cache"), self.plan.config.processes > 1);
        let in_memory = |path: &Path| path.to_string_lossy().starts_with("/memfd:weir");
        let of_answer = |path: &Path| path.starts_with(&cache) || in_memory(path);
        let counts = |entry: &std::fs::DirEntry| match std::fs::read_link(entry.path()) {
            Ok(path) if several => !of_answer(&path),
            _ => true,
        };
        let all = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        all.filter(counts).count()
    }

    /// Checks that all counters are as at the start, and that no temporary file is left.
    pub fn check_leftovers(&mut self) {
        // A killed worker leaves its temporary files, and its successor does not know them.
        for name in ["body", "proxy"].iter().filter(|_| self.killed == 0) {
            let left = files_under(&self.home.join(name));
            if left > 0 {
                self.records.report(format!("{left} temporary files are left in {name}"));
            }
        }
        self.check_stored_files();
        let mut last = self.send_final("/status", 0);
        let text = self.receive_final(&mut last, SHORT);
        let lines: Vec<&str> = text.lines().rev().take(4).collect();
        let alone = lines.first().is_some_and(|l| l.trim() == "Reading: 0 Writing: 1 Waiting: 0")
            && lines.get(3).is_some_and(|l| l.trim() == "Active connections: 1");
        if !alone {
            self.records
                .report(format!("the status page counts more than its own client: {lines:?}"));
        }
    }

    /// Checks that the files of `proxy_store` are complete.
    fn check_stored_files(&mut self) {
        if self.plan.again {
            return;
        }
        let files = std::fs::read_dir(self.home.join("store/t")).into_iter().flatten().flatten();
        for file in files {
            let name = file.file_name().to_string_lossy().into_owned();
            let script = name.parse().ok().and_then(|id: u64| self.records.scripts.get(&id));
            let Some((id, script)) = name.parse().ok().zip(script) else {
                self.records.report(format!("the file {name} belongs to no stored answer"));
                continue;
            };
            // An answer that ends with its connection counts as complete even if the connection
            // broke off.
            let torn = script.framing == Framing::Close && script.breaks.is_some();
            let bytes = std::fs::read(file.path()).unwrap_or_default();
            let whole = bytes.len() as u64 == script.len || torn;
            if !whole || pattern::first_wrong(id, 0, &bytes).is_some() {
                let what = format!("{} bytes of {} are stored", bytes.len(), script.len);
                self.records.suspect(id, false, format!("request {id} /t/{id}: {what}"));
            }
        }
    }

    /// Checks that `limit_conn` and `max_conns` admit as many requests as at the start, and that
    /// each cached object can be fetched.
    pub fn check_limits_and_cache(&mut self) {
        if self.plan.accepts.is_some() {
            return;
        }
        (self.plan.broken_servers, self.last) = (false, true);
        for name in 0..OBJECTS {
            let path = format!("/c/{name}");
            let mut last = self.send_final(&path, 0);
            let text = self.receive_final(&mut last, FINAL_TIMEOUT);
            if !answer(&text).starts_with("HTTP/1.1 200") {
                let begin = text.get(..200).unwrap_or(&text);
                self.records.report(format!("{path} cannot be fetched in the end: {begin:?}"));
            }
        }
        // A killed worker never releases its entries of `limit_conn`, as in nginx.
        let Some(limits) = self.plan.limits.filter(|_| self.killed == 0) else { return };
        let request = |course: &mut Course| {
            course.request_count += 1;
            let id = course.request_count;
            course.records.scripts.insert(id, Script::plain(FINAL_TIMEOUT));
            let mut last = course.send_final(&format!("/k/{id}"), id);
            let text = course.receive_final(&mut last, FINAL_TIMEOUT / 8);
            (last, text)
        };
        let mut let_in: Vec<FinalClient> = (0..limits.most()).map(|_| request(self).0).collect();
        let (_, refusal) = request(self);
        let answers: Vec<String> =
            let_in.iter_mut().map(|last| self.receive_final(last, FINAL_TIMEOUT)).collect();
        let all = answers.iter().all(|text| text.starts_with("HTTP/1.1 200"));
        if !all || !refusal.starts_with("HTTP/1.1 50") {
            self.records.report(format!("{limits:?} are in the end {answers:?}, and {refusal:?}"));
        }
    }

    /// Sends a request without delays and faults.
    fn send_final(&mut self, path: &str, id: u64) -> FinalClient {
        let fd = self.connect().expect("a connection where there is room for all");
        let way = Link { piece: 64_000, delay: 0 };
        let mut wire = Wire::new(fd, way, way);
        wire.tls = self.plan.tls.then(|| self.tls_settings.connect(&mut self.dice, false));
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: h\r\nX-Ask: {id}\r\nConnection: close\r\n\r\n");
        wire.out.extend_from_slice(head.as_bytes());
        FinalClient { wire, text: Vec::new() }
    }

    /// Receives for this long. Returns what was received.
    fn receive_final(&mut self, last: &mut FinalClient, time: u64) -> String {
        let end = self.world.now() + time;
        let mut piece = Vec::new();
        while self.world.now() < end {
            while last.wire.has_more() && last.wire.send(&mut self.dice) {}
            self.run_for(SHORT / 10);
            while let Received::Bytes(_) = last.wire.take(&mut self.dice, &mut piece) {
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

/// Skips interim answers, which may be passed on by RFC 9111.
fn answer(text: &str) -> &str {
    match text.split_once("\r\n\r\n") {
        Some((head, rest)) if head.starts_with("HTTP/1.1 1") => answer(rest),
        _ => text,
    }
}
