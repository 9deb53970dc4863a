//! Lists the files of a directory. nginx: ngx_http_autoindex_module.

use bytes::Bytes;
use weir_conf::{Directive as Line, Error};
use weir_engine::Boxed;
use weir_log::Level;
use weir_proto::http1::Method;
use weir_proto::uri;

use crate::config::module::Module;
use crate::config::scope::{Directive, setting};
use crate::files::directory;
use crate::modules::charset_filter;
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

mod page;

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    enabled: bool,
    format: Format,
    /// Whether the HTML page has local times.
    localtime: bool,
    /// Whether the HTML page has sizes in bytes.
    exact_size: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Conf { enabled: false, format: Format::Html, localtime: false, exact_size: true }
    }
}

impl Settings for Conf {}

/// `autoindex_format`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Html,
    Xml,
    Json,
    /// JSON as the argument of a call of the function that the query names.
    Jsonp,
}

impl Format {
    fn read(d: &Line) -> Result<Format, Error> {
        d.choice(&[
            ("html", Format::Html),
            ("json", Format::Json),
            ("jsonp", Format::Jsonp),
            ("xml", Format::Xml),
        ])
    }
}

const DIRECTIVES: &[Directive] = &[
    setting!("autoindex", CONF.enabled, Line::flag, "Lists directories without an index."),
    setting!(
        "autoindex_format",
        CONF.format,
        Format::read,
        "The list's format: html, xml, json or jsonp."
    ),
    setting!(
        "autoindex_localtime",
        CONF.localtime,
        Line::flag,
        "Whether the HTML list has local times."
    ),
    setting!(
        "autoindex_exact_size",
        CONF.exact_size,
        Line::flag,
        "Whether the HTML list has sizes in bytes."
    ),
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_autoindex", directives: DIRECTIVES, ..Module::NEW };

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    CONF.of(conf).enabled
}

/// The handler of the content phase.
pub fn handler(r: &mut Request) -> Answer<'_> {
    let method = matches!(r.method, Method::Get | Method::Head);
    if !method || !r.path.ends_with(b"/") {
        return Answer::Now(Step::Next);
    }
    Answer::Later(Boxed::new(move || list(r)))
}

async fn list(r: &mut Request) -> Step {
    let conf = CONF.of(r.conf());
    let path = match directory::requested_path(r) {
        Ok(path) => path,
        Err(end) => return end,
    };
    let callback = match conf.format {
        Format::Jsonp => callback(r),
        _ => Ok(None),
    };
    let Ok(callback) = callback else { return Step::Status(400) };
    let mut entries = match directory::entries(r, &path, directory::EntryFilter::USUAL).await {
        Ok(entries) => entries,
        Err(end) => return end,
    };
    let (format, exact_size) = (conf.format, conf.exact_size);
    let utf8 = charset_filter::is_utf8(r);
    if format == Format::Xml {
        r.response.set_charset(b"utf-8".to_vec());
    }
    let offset = if conf.localtime { r.event_loop.local_time().1 } else { 0 };
    let look = page::Look { offset: offset.into(), exact_size, utf8 };
    let (count, path) = (entries.len(), r.path.clone());
    let write = move || {
        entries.sort_by(|a, b| {
            b.is_directory().cmp(&a.is_directory()).then_with(|| a.name.cmp(&b.name))
        });
        match (format, callback) {
            (Format::Html, _) => ("text/html", page::html(&path, &entries, look)),
            (Format::Xml, _) => ("text/xml", page::xml(&entries)),
            (_, None) => ("application/json", page::json(&entries)),
            (_, Some(name)) => ("application/javascript", page::jsonp(&entries, &name)),
        }
    };
    let (kind, body) = match directory::run_for(r, count, write).await {
        Ok(written) => written,
        Err(end) => return end,
    };
    r.response.status = 200;
    r.response.set_type(kind.as_bytes());
    Step::Respond(Bytes::from(body))
}

/// The function that the query names. An error if it is not a valid name.
fn callback(r: &Request) -> Result<Option<Vec<u8>>, ()> {
    let Some(name) = uri::arg(&r.args, b"callback") else { return Ok(None) };
    let complain = |what: &str| {
        let name = weir_log::Bytes(name);
        r.log(Level::Info, format_args!("client sent {what} callback name: \"{name}\""));
    };
    if name.len() > 128 {
        complain("too long");
        return Err(());
    }
    if !name.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.')) {
        complain("invalid");
        return Err(());
    }
    Ok((!name.is_empty()).then(|| name.to_vec()))
}
