//! The answers of a server, in a form that can be compared.

use std::io::Read;

use weir_testkit::{Server, is_signed, unsigned};

use crate::ask::Ask;
use crate::wire::{self, Came};

/// The ports of a server, in the order of [`wire::connect`].
pub fn ports(server: &Server) -> [u16; 3] {
    [server.port(), server.port_at(1), server.port_at(2)]
}

/// What the server answers, as text in which nothing may differ.
pub fn answer(server: &Server, ask: &Ask) -> String {
    told(wire::ask(ask, ports(server)), ask, server)
}

/// As [`answer`], of a server at another address than 127.0.0.1.
pub fn answer_at(server: &Server, address: &str, ask: &Ask) -> String {
    told(wire::ask_at(ask, address, ports(server)), ask, server)
}

fn told(mut came: Came, ask: &Ask, server: &Server) -> String {
    unpack(&mut came);
    let body = String::from_utf8_lossy(&came.body).into_owned();
    // The page of a status is as long as the server's name makes it; to HEAD only the length is told.
    let page = ask.method == "HEAD"
        && !came.status.starts_with("200")
        && came.field("Content-Type").is_some_and(|kind| kind.starts_with("text/html"));
    let signed = is_signed(&body) || page;
    // Which header comes first has no meaning (RFC 9110 section 5.3), but among those of one name.
    came.head.sort_by_key(|(name, _)| name.to_ascii_lowercase());
    let mut text = format!("{}\n", came.status);
    for (name, value) in &came.head {
        put(&mut text, name, value, signed);
    }
    text += &format!("\n{body}");
    for (name, value) in &came.trailers {
        put(&mut text, name, value, signed);
    }
    if !came.end.is_empty() {
        text += &format!("\n-- {}", came.end);
    }
    plain(&text, server)
}

/// Adds a line, unless it is one that may differ: dates, names, and the length of a page that is signed.
fn put(text: &mut String, name: &str, value: &str, signed: bool) {
    let lower = name.to_ascii_lowercase();
    let own = lower == "date" || (lower == "server" && value != "behind");
    if own || (signed && lower == "content-length") {
        return;
    }
    let now = lower == "expires" && !value.contains("1970") && !value.contains("2037");
    *text += &format!("{name}: {}\n", if now { "a time" } else { value });
}

/// A text without what is of one server alone.
pub fn plain(text: &str, server: &Server) -> String {
    let mut text = text.replace(&server.dir().path().display().to_string(), "DIR");
    for (n, port) in ports(server).iter().enumerate() {
        text = text.replace(&format!(":{port}"), &format!(":PORT{n}"));
    }
    unsigned(&text)
}

/// Two compressors write different bytes for the same text.
fn unpack(came: &mut Came) {
    if came.field("Content-Encoding") != Some("gzip") {
        return;
    }
    let mut plain = Vec::new();
    if flate2::read::GzDecoder::new(&came.body[..]).read_to_end(&mut plain).is_ok() {
        came.body = plain;
    }
}
