//! Formats a list of files. The output is byte for byte nginx's, since programs parse it.

use std::io::Write;

use weir_proto::date::{Calendar, imf_fixdate};
use weir_proto::uri::{Escape, escape, escape_html};

use crate::escape::json_escape;
use crate::files::directory::DirectoryEntry;

/// The width of the column of names, in characters.
const NAMES: usize = 50;

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// How the HTML page shows names, times and sizes.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// The offset of local time from UTC, in seconds, or 0.
    pub offset: i64,
    /// Whether sizes are in bytes.
    pub exact_size: bool,
    /// Whether the page is in UTF-8, so that a character may have several bytes.
    pub utf8: bool,
}

/// The HTML page.
pub fn html(path: &[u8], entries: &[DirectoryEntry], look: Look) -> Vec<u8> {
    let mut out = b"<html>\r\n<head><title>Index of ".to_vec();
    escape_html(path, &mut out);
    out.extend_from_slice(b"</title></head>\r\n<body>\r\n<h1>Index of ");
    escape_html(path, &mut out);
    out.extend_from_slice(b"</h1><hr><pre><a href=\"../\">../</a>\r\n");
    for entry in entries {
        line(entry, look, &mut out);
    }
    out.extend_from_slice(b"</pre><hr></body>\r\n</html>\r\n");
    out
}

fn line(entry: &DirectoryEntry, look: Look, out: &mut Vec<u8>) {
    let slash: &[u8] = if entry.is_directory() { b"/" } else { b"" };
    out.extend_from_slice(b"<a href=\"");
    escape(Escape::UriComponent, &entry.name, out);
    out.extend_from_slice(slash);
    out.extend_from_slice(b"\">");
    let text = if look.utf8 { std::str::from_utf8(&entry.name).ok() } else { None };
    let mut width = text.map_or(entry.name.len(), |text| text.chars().count());
    if width > NAMES {
        let cut = text.and_then(|text| text.char_indices().nth(NAMES - 3));
        let cut = cut.map_or(NAMES - 3, |(at, _)| at);
        escape_html(entry.name.get(..cut).unwrap_or_default(), out);
        out.extend_from_slice(b"..&gt;</a>");
    } else {
        escape_html(&entry.name, out);
        if width < NAMES {
            out.extend_from_slice(slash);
            width += slash.len();
        }
        out.extend_from_slice(b"</a>");
        out.resize(out.len() + NAMES - width, b' ');
    }
    let c = Calendar::at(entry.info.modified.saturating_add(look.offset));
    let month = MONTHS.get(c.month as usize - 1).copied().unwrap_or_default();
    // Writing to a vector cannot fail.
    let _ = write!(out, " {:02}-{month}-{} {:02}:{:02} ", c.day, c.year, c.hour, c.minute);
    let size = match (entry.is_directory(), look.exact_size) {
        (true, true) => format!("{:>19}", "-"),
        (true, false) => format!("{:>7}", "-"),
        (false, true) => format!("{:>19}", entry.info.len),
        (false, false) => short_size(entry.info.len),
    };
    out.extend_from_slice(size.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// A size in a column of seven characters.
fn short_size(len: u64) -> String {
    let rounded = |unit: u64| len / unit + u64::from(len % unit > unit / 2 - 1);
    match len {
        0..=9999 => format!(" {len:6}"),
        10_000..0x10_0000 => format!("{:6}K", rounded(1 << 10)),
        0x10_0000..0x4000_0000 => format!("{:6}M", rounded(1 << 20)),
        _ => format!("{:6}G", rounded(1 << 30)),
    }
}

fn kind(entry: &DirectoryEntry) -> &'static str {
    if entry.is_directory() {
        "directory"
    } else if entry.is_file() {
        "file"
    } else {
        "other"
    }
}

/// XML.
pub fn xml(entries: &[DirectoryEntry]) -> Vec<u8> {
    let mut out = b"<?xml version=\"1.0\"?>\r\n<list>\r\n".to_vec();
    for entry in entries {
        let (kind, c) = (kind(entry), Calendar::at(entry.info.modified));
        let _ = write!(
            out,
            "<{kind} mtime=\"{:4}-{:02}-{:02}T{:02}:{:02}:{:02}Z\"",
            c.year, c.month, c.day, c.hour, c.minute, c.second
        );
        if entry.is_file() {
            let _ = write!(out, " size=\"{}\"", entry.info.len);
        }
        out.push(b'>');
        escape_html(&entry.name, &mut out);
        let _ = write!(out, "</{kind}>\r\n");
    }
    out.extend_from_slice(b"</list>\r\n");
    out
}

/// JSON.
pub fn json(entries: &[DirectoryEntry]) -> Vec<u8> {
    let mut out = b"[".to_vec();
    for (i, entry) in entries.iter().enumerate() {
        let comma: &[u8] = if i == 0 { b"" } else { b"," };
        out.extend_from_slice(comma);
        out.extend_from_slice(b"\r\n{ \"name\":\"");
        json_escape(&entry.name, &mut out);
        let _ = write!(out, "\", \"type\":\"{}\", \"mtime\":\"", kind(entry));
        out.extend_from_slice(&imf_fixdate(entry.info.modified));
        out.push(b'"');
        if entry.is_file() {
            let _ = write!(out, ", \"size\":{}", entry.info.len);
        }
        out.extend_from_slice(b" }");
    }
    out.extend_from_slice(b"\r\n]");
    out
}

/// JSON as the argument of a call of `callback`.
pub fn jsonp(entries: &[DirectoryEntry], callback: &[u8]) -> Vec<u8> {
    [b"/* callback */\r\n", callback, b"(", &json(entries), b");"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_width_of_a_name_is_its_number_of_characters() {
        let entry = |name: &str| DirectoryEntry { name: name.as_bytes().to_vec(), info: info() };
        let shown = |name: &str, utf8| {
            let page = html(b"/", &[entry(name)], Look { offset: 0, exact_size: true, utf8 });
            let page = String::from_utf8_lossy(&page).into_owned();
            let at = page.rfind("\">").unwrap() + 2;
            page[at..].split(" 01-Jan").next().unwrap().to_owned()
        };
        assert_eq!(shown(&"\u{e4}".repeat(51), true), "\u{e4}".repeat(47) + "..&gt;</a>");
        let fits = "\u{e4}".repeat(49) + "</a> ";
        assert_eq!(shown(&"\u{e4}".repeat(49), true), fits);
        // In other charsets, and in invalid UTF-8, each byte counts as a character.
        assert_eq!(shown(&"\u{e4}".repeat(24), false), "\u{e4}".repeat(24) + "</a>  ");
    }

    fn info() -> weir_engine::FileInfo {
        weir_engine::FileInfo {
            kind: weir_engine::FileKind::File,
            len: 1,
            modified: 0,
            modified_nsec: 0,
            inode: 0,
            device: 0,
            uid: 0,
            permissions: 0,
        }
    }

    #[test]
    fn sizes_are_rounded() {
        for (len, text) in [
            (0, "      0"),
            (9999, "   9999"),
            (10_000, "    10K"),
            (10_751, "    10K"),
            (10_752, "    11K"),
            (1_048_575, "  1024K"),
            (1_048_576, "     1M"),
            (1_610_612_736, "     2G"),
        ] {
            assert_eq!(short_size(len), text);
        }
    }
}
