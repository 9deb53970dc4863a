//! Writes the page. Its HTML is that of ngx-fancyindex, since style sheets refer to it.

use std::io::Write;

use weir_proto::uri::{Escape, escape, escape_html};

use crate::files::directory::DirectoryEntry;
use crate::modules::ssi_filter::strftime::{Moment, strftime};

/// The column that a list is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Name,
    Size,
    Date,
}

/// How entries are sorted.
#[derive(Debug, Clone)]
pub struct Order {
    /// The default column, and whether it is descending.
    pub by: (Column, bool),
    pub directories_first: bool,
    /// Whether names are compared by case.
    pub cased: bool,
}

impl Default for Order {
    fn default() -> Self {
        Order { by: (Column::Name, false), directories_first: true, cased: true }
    }
}

/// The appearance of a page.
#[derive(Debug, Clone)]
pub struct Look {
    pub css: Vec<u8>,
    pub exact_size: bool,
    pub hide_parent: bool,
    pub localtime: bool,
    /// The width of names, in characters.
    pub name_length: usize,
    /// Whether the path is shown below the site's own header.
    pub path: bool,
    pub time_format: Vec<u8>,
}

impl Default for Look {
    fn default() -> Self {
        Look {
            css: Vec::new(),
            exact_size: true,
            hide_parent: false,
            localtime: false,
            name_length: 50,
            path: true,
            time_format: b"%Y-%b-%d %H:%M".to_vec(),
        }
    }
}

impl Order {
    /// Sorts entries by a column. `down`: in descending order.
    pub fn sort(&self, entries: &mut [DirectoryEntry], (column, down): (Column, bool)) {
        let named = |a: &DirectoryEntry, b: &DirectoryEntry| match self.cased {
            true => a.name.cmp(&b.name),
            false => {
                let lower = |entry: &DirectoryEntry| entry.name.to_ascii_lowercase();
                lower(a).cmp(&lower(b)).then_with(|| a.name.cmp(&b.name))
            }
        };
        entries.sort_by(|a, b| {
            let order = match column {
                Column::Name => named(a, b),
                Column::Size => a.info.len.cmp(&b.info.len),
                Column::Date => a.info.modified.cmp(&b.info.modified),
            };
            let order = if down { order.reverse() } else { order };
            let kinds = b.is_directory().cmp(&a.is_directory());
            let kinds = if self.directories_first { kinds } else { std::cmp::Ordering::Equal };
            kinds.then(order).then_with(|| named(a, b))
        });
    }
}

/// The sort order that a query requests: `C=N`, `C=S` or `C=M`, optionally with `&O=D`.
pub fn asked(args: &[u8]) -> Option<(Column, bool)> {
    let (column, down) = match *args {
        [b'C', b'=', column] => (column, false),
        [b'C', b'=', column, b'&', b'O', b'=', order] => (column, order == b'D'),
        _ => return None,
    };
    let column = match column {
        b'S' => Column::Size,
        b'M' => Column::Date,
        _ => Column::Name,
    };
    Some((column, down))
}

/// Writes the whole page.
pub fn table(
    path: &[u8],
    entries: &[DirectoryEntry],
    look: &Look,
    offset: i32,
    asked: Option<(Column, bool)>,
    header: Option<&[u8]>,
    footer: Option<&[u8]>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(2048 + entries.len() * 128);
    match header {
        Some(header) => {
            out.extend_from_slice(header);
            if look.path {
                escape_html(path, &mut out);
                out.extend_from_slice(b"</h1>\n");
            }
        }
        None => begin(path, look, &mut out),
    }
    out.extend_from_slice(HEADINGS);
    let sorted = asked.map_or_else(String::new, |(column, down)| {
        let column = match column {
            Column::Name => 'N',
            Column::Size => 'S',
            Column::Date => 'M',
        };
        format!("?C={column}&amp;O={}", if down { 'D' } else { 'A' })
    });
    if !look.hide_parent && path != b"/" {
        // Writing to a vector cannot fail.
        let _ = writeln!(
            out,
            "<tr><td class=\"link\"><a href=\"../{sorted}\">Parent directory/</a></td>\
             <td class=\"size\">-</td><td class=\"date\">-</td></tr>"
        );
    }
    for entry in entries {
        row(entry, look, offset, &sorted, &mut out);
    }
    out.extend_from_slice(b"</tbody></table>");
    out.extend_from_slice(footer.unwrap_or(b"</body></html>"));
    out
}

fn begin(path: &[u8], look: &Look, out: &mut Vec<u8>) {
    out.extend_from_slice(HEAD);
    if !look.css.is_empty() {
        out.extend_from_slice(b"<link rel=\"stylesheet\" href=\"");
        escape_html(&look.css, out);
        out.extend_from_slice(b"\" type=\"text/css\"/>\n");
    }
    out.extend_from_slice(b"\n<title>Index of ");
    escape_html(path, out);
    out.extend_from_slice(b"</title>\n</head><body><h1>Index of ");
    escape_html(path, out);
    out.extend_from_slice(b"</h1>\n");
}

fn row(entry: &DirectoryEntry, look: &Look, offset: i32, sorted: &str, out: &mut Vec<u8>) {
    let directory = entry.is_directory();
    out.extend_from_slice(b"<tr><td class=\"link\"><a href=\"");
    escape(Escape::UriComponent, &entry.name, out);
    if directory {
        let _ = write!(out, "/{sorted}");
    }
    out.extend_from_slice(b"\" title=\"");
    escape_html(&entry.name, out);
    out.extend_from_slice(b"\">");
    let text = std::str::from_utf8(&entry.name).ok();
    let length = text.map_or(entry.name.len(), |text| text.chars().count());
    if length > look.name_length {
        let keep = look.name_length.saturating_sub(3);
        let cut = text.and_then(|text| text.char_indices().nth(keep)).map_or(keep, |(at, _)| at);
        escape_html(entry.name.get(..cut).unwrap_or_default(), out);
        out.extend_from_slice(b"..&gt;");
    } else {
        escape_html(&entry.name, out);
        if directory && length < look.name_length {
            out.push(b'/');
        }
    }
    out.extend_from_slice(b"</a></td><td class=\"size\">");
    let _ = match (directory, look.exact_size) {
        (true, _) => write!(out, "-"),
        (false, true) => write!(out, "{:>19}", entry.info.len),
        (false, false) => write!(out, "{}", short_size(entry.info.len)),
    };
    out.extend_from_slice(b"</td><td class=\"date\">");
    let zone = if look.localtime { "" } else { "UTC" };
    let moment = Moment { unix: entry.info.modified, offset, zone };
    escape_html(&strftime(&look.time_format, moment), out);
    out.extend_from_slice(b"</td></tr>\n");
}

fn short_size(len: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut size, mut unit) = (len as f64, 0);
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let unit = UNITS.get(unit).copied().unwrap_or_default();
    if unit == "B" { format!("{len} B") } else { format!("{size:.1} {unit}") }
}

const HEAD: &[u8] = b"<!DOCTYPE html><html><head><meta http-equiv=\"content-type\" content=\"text/html; \
    charset=utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><style type=\"text/css\">\
    body{background:#fff;color:#222;font-family:sans-serif}#list{width:100%;border:1px solid #bbb}\
    th{text-align:left;background:#eee}th,td{padding:.1em .5em}tr:nth-child(even){background:#f6f6f6}\
    </style>\n";
const HEADINGS: &[u8] = b"<table id=\"list\"><thead><tr>\
    <th style=\"width:55%\"><a href=\"?C=N&amp;O=A\">File Name</a>&nbsp;<a href=\"?C=N&amp;O=D\">&nbsp;&darr;&nbsp;</a></th>\
    <th style=\"width:20%\"><a href=\"?C=S&amp;O=A\">File Size</a>&nbsp;<a href=\"?C=S&amp;O=D\">&nbsp;&darr;&nbsp;</a></th>\
    <th style=\"width:25%\"><a href=\"?C=M&amp;O=A\">Date</a>&nbsp;<a href=\"?C=M&amp;O=D\">&nbsp;&darr;&nbsp;</a></th>\
    </tr></thead>\n<tbody>";
