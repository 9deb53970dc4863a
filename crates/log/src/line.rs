//! One line of an error log. It is built on the stack, cut to nginx's maximum, and written by one call.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::thread::gettid;
use weir_sys::localtime::local;

use crate::Level;
use crate::later::{self, Output, WriteQueue};

/// Longest line in bytes, newline included. nginx: NGX_MAX_ERROR_STR.
pub const LINE_MAX: usize = 2048;

/// `2026/11/20 07:29:42`
const STAMP: usize = 19;

/// A finished line, newline included.
pub(crate) struct LogLine {
    bytes: [u8; LINE_MAX],
    len: usize,
    /// Where the text begins.
    text: usize,
    second: i64,
    level: Level,
    connection: Option<u64>,
}

impl LogLine {
    pub(crate) fn new(level: Level, connection: Option<u64>, text: fmt::Arguments<'_>) -> LogLine {
        let (second, stamp) = stamp();
        let mut line = LogLine { second, level, connection, ..LogLine::empty() };
        line.push(&stamp);
        // The writer below never fails: it cuts.
        let _ = write!(line, " [{level}] {}#{}: ", std::process::id(), gettid().as_raw_nonzero());
        if let Some(number) = connection {
            let _ = write!(line, "*{number} ");
        }
        line.text = line.len;
        let _ = line.write_fmt(text);
        line.end();
        line
    }

    fn empty() -> LogLine {
        let (level, connection) = (Level::Error, None);
        LogLine { bytes: [0; LINE_MAX], len: 0, text: 0, second: 0, level, connection }
    }

    /// The message, without time, level and process numbers.
    pub(crate) fn text(&self) -> &[u8] {
        self.without_newline().get(self.text..).unwrap_or_default()
    }

    /// Its level.
    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// The line as a JSON object, newline included.
    pub(crate) fn json(&self) -> String {
        let t = local(self.second);
        let (sign, offset) = (if t.offset < 0 { '-' } else { '+' }, t.offset.abs() / 60);
        let mut out = format!(
            "{{\"time\":\"{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{sign}{:02}:{:02}\",\"level\":\"{}\",\"pid\":{},\"tid\":{}",
            t.year,
            t.month,
            t.day,
            t.hour,
            t.minute,
            t.second,
            offset / 60,
            offset % 60,
            self.level,
            std::process::id(),
            gettid().as_raw_nonzero(),
        );
        if let Some(number) = self.connection {
            let _ = write!(out, ",\"connection\":{number}");
        }
        out.push_str(",\"message\":\"");
        // All control characters but tabs are escaped already.
        for ch in String::from_utf8_lossy(self.text()).chars() {
            match ch {
                '"' | '\\' => out.extend(['\\', ch]),
                '\t' => out.push_str("\\t"),
                ch => out.push(ch),
            }
        }
        out.push_str("\"}\n");
        out
    }

    /// Its time, in seconds since 1970.
    pub(crate) fn second(&self) -> i64 {
        self.second
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    pub(crate) fn without_newline(&self) -> &[u8] {
        self.bytes().strip_suffix(b"\n").unwrap_or_default()
    }

    /// Appends what fits while leaving room for the newline.
    fn push(&mut self, more: &[u8]) {
        let room = (LINE_MAX - 1).saturating_sub(self.len);
        let n = more.len().min(room);
        if let (Some(to), Some(from)) = (self.bytes.get_mut(self.len..self.len + n), more.get(..n))
        {
            to.copy_from_slice(from);
            self.len += n;
        }
    }

    fn end(&mut self) {
        if let Some(last) = self.bytes.get_mut(self.len) {
            *last = b'\n';
            self.len += 1;
        }
    }
}

impl fmt::Write for LogLine {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // Messages contain what clients sent. It must not begin a line, nor control a terminal.
        let mut rest = s;
        while let Some(at) = rest.find(is_control) {
            let (plain, from) = rest.split_at(at);
            self.push(plain.as_bytes());
            let len = from.chars().next().map_or(1, char::len_utf8);
            let (control, after) = from.split_at(len);
            for byte in control.bytes() {
                self.push(&escaped(byte));
            }
            rest = after;
        }
        self.push(rest.as_bytes());
        Ok(())
    }
}

/// Shows bytes from a client or a server. Bytes that are not UTF-8 are shown as `\xE9`.
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// Shows a path.
    pub fn of_path(path: &'a Path) -> Bytes<'a> {
        Bytes(path.as_os_str().as_bytes())
    }
}

impl fmt::Display for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.utf8_chunks().try_for_each(|chunk| {
            f.write_str(chunk.valid())?;
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02X}"))
        })
    }
}

/// Whether the character must be escaped. A tab does no harm.
fn is_control(ch: char) -> bool {
    ch.is_control() && ch != '\t'
}

/// `\x0A`, as in access logs.
fn escaped(byte: u8) -> [u8; 4] {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let digit = |nibble: u8| HEX[usize::from(nibble & 15)];
    [b'\\', b'x', digit(byte >> 4), digit(byte)]
}

thread_local! {
    /// The last time stamp made on this thread. Many lines share a second.
    static LAST: Cell<(i64, [u8; STAMP])> = const { Cell::new((i64::MIN, [0; STAMP])) };
}

fn stamp() -> (i64, [u8; STAMP]) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let (second, text) = LAST.get();
    if second == now {
        return (now, text);
    }
    let text = stamp_of(now);
    LAST.set((now, text));
    (now, text)
}

fn stamp_of(unix: i64) -> [u8; STAMP] {
    let t = local(unix);
    let mut text = [b' '; STAMP];
    let said = format!(
        "{:04}/{:02}/{:02} {:02}:{:02}:{:02}",
        t.year, t.month, t.day, t.hour, t.minute, t.second
    );
    for (to, from) in text.iter_mut().zip(said.bytes()) {
        *to = from;
    }
    text
}

/// Writes `NAME: [level] text` to stderr.
pub(crate) fn console(name: &str, level: Level, text: fmt::Arguments<'_>) {
    let mut line = LogLine::empty();
    let _ = write!(line, "{name}: [{level}] {text}");
    line.end();
    stderr(line.bytes());
}

/// One unbuffered write to stderr, now or later. A failure cannot be reported.
pub(crate) fn stderr(bytes: &[u8]) {
    static STDERR: LazyLock<Arc<Stderr>> = LazyLock::new(Arc::default);
    later::write(&STDERR, bytes);
}

/// Standard error, which may be a file, a pipe or a terminal that nothing reads.
#[derive(Default)]
struct Stderr(WriteQueue);

impl Output for Stderr {
    fn path(&self) -> &Path {
        Path::new("stderr")
    }

    fn queue(&self) -> &WriteQueue {
        &self.0
    }

    fn put(&self, mut lines: &[u8]) {
        while !lines.is_empty() {
            match rustix::io::write(rustix::stdio::stderr(), lines) {
                Ok(n) => lines = lines.get(n..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// An error of the system as nginx shows it: `(98: Address already in use)`.
#[derive(Clone, Copy, Debug)]
pub struct Cause<'a>(pub &'a io::Error);

impl Cause<'_> {
    /// The text alone: `Address already in use`.
    pub fn words(&self) -> String {
        let Some(number) = self.0.raw_os_error() else { return self.0.to_string() };
        // std appends its own " (os error N)" to the system's text.
        let mut text = io::Error::from_raw_os_error(number).to_string();
        text.truncate(text.rfind(" (os error").unwrap_or(text.len()));
        text
    }
}

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.words();
        match self.0.raw_os_error() {
            // In one piece, so that [`message`] knows it.
            Some(number) => f.write_str(&format!("({number}: {words})")),
            None => write!(f, "({words})"),
        }
    }
}

/// The most bytes of a message that [`message`] shortens. The rest of a line has room for its time
/// and for the client.
const MESSAGE_MAX: usize = LINE_MAX - 128;

/// The most bytes of it from the error of the system on.
const CAUSE_MAX: usize = 256;

/// Collects a message, and where the last error of the system in it begins.
#[derive(Default)]
struct Message {
    text: String,
    cause: Option<usize>,
}

impl fmt::Write for Message {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let inner = s.strip_prefix('(').and_then(|s| s.strip_suffix(')'));
        if inner.and_then(|s| s.split_once(": ")).is_some_and(|(n, _)| n.parse::<i32>().is_ok()) {
            self.cause = Some(self.text.len());
        }
        self.text.push_str(s);
        Ok(())
    }
}

/// The text of a message. A line is cut at its end, where the error of the system stands. So a
/// message that is too long loses what is before that, as in nginx: `open() "/long...(2: No such
/// file or directory)`.
pub fn message(text: fmt::Arguments<'_>) -> String {
    let mut message = Message::default();
    let _ = message.write_fmt(text);
    let Message { mut text, cause } = message;
    let Some(cause) = cause.filter(|_| text.len() > MESSAGE_MAX) else { return text };
    let mut end = text.split_off(cause);
    cut(&mut end, CAUSE_MAX);
    let room = MESSAGE_MAX.saturating_sub(end.len());
    if text.len() > room {
        cut(&mut text, room);
        text.push_str("...");
    }
    text + &end
}

/// Shortens a text to at most this many bytes.
fn cut(text: &mut String, most: usize) {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_nginx_parts() {
        let line = LogLine::new(Level::Crit, Some(7), format_args!("open() \"{}\" failed", "/x"));
        let text = std::str::from_utf8(line.bytes()).unwrap();
        let (stamp, rest) = text.split_at(STAMP);
        assert_eq!(stamp.as_bytes().get(4), Some(&b'/'));
        let tid = gettid().as_raw_nonzero();
        assert_eq!(
            rest,
            format!(" [crit] {}#{tid}: *7 open() \"/x\" failed\n", std::process::id())
        );
    }

    #[test]
    fn a_long_line_is_cut_and_still_ends() {
        let long = "x".repeat(5000);
        let line = LogLine::new(Level::Error, None, format_args!("{long}"));
        assert_eq!(line.bytes().len(), LINE_MAX);
        assert!(line.bytes().ends_with(b"x\n"));
    }

    #[test]
    fn a_long_message_keeps_the_error_of_the_system() {
        let error = io::Error::from_raw_os_error(2);
        let shown = |path: &str| {
            message(format_args!("open() \"{path}\" failed {} while reading", Cause(&error)))
        };
        let end = "(2: No such file or directory) while reading";
        assert_eq!(shown("/x"), format!("open() \"/x\" failed {end}"));
        for unit in ["x", "\u{e4}"] {
            let long = shown(&unit.repeat(3000));
            assert!(
                long.len() < LINE_MAX - 100 && long.ends_with(&format!("{unit}...{end}")),
                "{long}"
            );
        }
        // What a client sends is not taken for it.
        let long = message(format_args!("{} (2: x) {}", "x".repeat(3000), "y"));
        assert!(long.ends_with("x (2: x) y"));
    }

    #[test]
    fn nothing_that_is_said_begins_another_line() {
        let line =
            LogLine::new(Level::Error, None, format_args!("a\nb\r\x1b[2J\0\t\u{9b}c\u{e4}\x7f"));
        let text = String::from_utf8_lossy(line.text()).into_owned();
        assert_eq!(text, "a\\x0Ab\\x0D\\x1B[2J\\x00\t\\xC2\\x9Bc\u{e4}\\x7F");
        assert_eq!(line.bytes().iter().filter(|b| **b == b'\n').count(), 1);
    }

    #[test]
    fn json_has_the_same_parts() {
        let said = format_args!("open() \"/x\\y\"\t\n failed");
        let text = LogLine::new(Level::Crit, Some(7), said).json();
        let tid = gettid().as_raw_nonzero();
        let rest = format!(
            "\"level\":\"crit\",\"pid\":{},\"tid\":{tid},\"connection\":7,\"message\":\"open() \\\"/x\\\\y\\\"\\t\\\\x0A failed\"}}\n",
            std::process::id()
        );
        assert!(text.starts_with("{\"time\":\"2") && text.ends_with(&rest), "{text}{rest}");
    }

    #[test]
    fn a_stamp_is_the_local_time() {
        let t = local(1_763_624_982);
        let said = stamp_of(1_763_624_982);
        let want = format!("2025/11/{:02} {:02}:49:42", t.day, t.hour);
        if t.offset % 3600 == 0 {
            assert_eq!(std::str::from_utf8(&said).unwrap(), want);
        }
    }

    #[test]
    fn a_cause_is_number_and_text() {
        let e = io::Error::from_raw_os_error(98);
        assert_eq!(Cause(&e).to_string(), "(98: Address already in use)");
        let own = io::Error::other("odd");
        assert_eq!(Cause(&own).to_string(), "(odd)");
    }
}
