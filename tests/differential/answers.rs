//! Answers of a connection, and where two servers' answers may differ.

use std::fmt;

use weir_testkit::{Server, is_signed, unsigned};

/// All that a server sent on a connection, made comparable.
pub struct Answers(String);

/// Header lines that may differ, each with its reason.
const ALLOWED: &[(&str, &str)] = &[("date:", "two clocks"), ("server:", "each server's own name")];

impl Answers {
    /// Takes what was read from a server.
    pub fn read(bytes: &[u8], server: &Server) -> Answers {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some((head, after)) = rest.split_once("\r\n\r\n") {
            // An answer to HEAD has a length and no body: the next answer follows at once.
            let none = bodiless(head) || after.starts_with("HTTP/1.");
            let length = if none { Some(0) } else { length_of(head) };
            let length = length.filter(|n| after.is_char_boundary((*n).min(after.len())));
            let (body, next) = after.split_at(length.unwrap_or(after.len()).min(after.len()));
            let signed = is_signed(body);
            // The page of a status is as long as the server's name makes it; HEAD shows its length alone.
            let page = signed || (is_page(head) && body.is_empty());
            put_head(&mut out, head, page);
            out += body;
            rest = next;
        }
        out += rest;
        for n in 0..2 {
            out = out.replace(&format!(":{}", server.port_at(n)), ":PORT");
        }
        Answers(unsigned(&out.replace(&server.dir().path().display().to_string(), "DIR")))
    }

    /// What differs, in words; `None` if nothing does.
    pub fn differs(&self, other: &Answers) -> Option<String> {
        if self.0 == other.0 || self.ended_early(other) {
            return None;
        }
        let first = self.0.lines().zip(other.0.lines()).find(|(a, b)| a != b);
        Some(match first {
            Some((a, b)) => format!("{a:?} is answered by weir with {b:?}"),
            None => "one answer is longer".to_owned(),
        })
    }

    /// nginx promises keep-alive with a 412 and closes the connection all the same; weir goes on.
    fn ended_early(&self, other: &Answers) -> bool {
        let last = self.0.rfind("HTTP/1.1 ").unwrap_or(0);
        let kept = self.0[last..].contains("Connection: keep-alive");
        kept && self.0[last..].starts_with("HTTP/1.1 412") && other.0.starts_with(&self.0)
    }
}

fn put_head(out: &mut String, head: &str, page: bool) {
    for line in head.split("\r\n") {
        let lower = line.to_ascii_lowercase();
        let allowed = ALLOWED.iter().any(|(name, _)| lower.starts_with(name));
        let length = page && lower.starts_with("content-length:");
        if allowed || length {
            continue;
        }
        *out += line;
        out.push('\n');
    }
    out.push('\n');
}

fn length_of(head: &str) -> Option<usize> {
    head.split("\r\n").find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok())
}

fn bodiless(head: &str) -> bool {
    head.starts_with("HTTP/1.1 1")
        || ["204", "304"].iter().any(|s| head.split(' ').nth(1) == Some(s))
}

fn is_page(head: &str) -> bool {
    let status = head.split(' ').nth(1).and_then(|text| text.parse::<u16>().ok());
    status.is_some_and(|s| s >= 300) && head.contains("Content-Type: text/html")
}

impl fmt::Display for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.chars().take(700).collect::<String>())
    }
}
