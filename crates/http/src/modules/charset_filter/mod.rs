//! Sets the charset of responses and converts their bodies. nginx: ngx_http_charset_filter_module.
//!
//! `maps` has the tables of `charset_map`, `recode` converts a body piece by piece.

use std::sync::{Arc, RwLock};

use weir_conf::{Directive as Line, Error};
use weir_log::Level;

use crate::answer::response::Response;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::config::types::{Types, types_setting};
use crate::phases::Step;
use crate::request::Request;
use crate::site::settings::{Key, Settings};
use crate::upstream::reading;
use weir_values::Template;

mod maps;
mod recode;

#[cfg(test)]
mod tests;

use maps::Maps;
use recode::Recode;

/// The default of `charset_types`.
const TYPES: &[&str] = &[
    "text/html",
    "text/xml",
    "text/plain",
    "text/vnd.wap.wml",
    "application/javascript",
    "application/rss+xml",
];

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    charset: Charset,
    source: Charset,
    overrides: bool,
    types: Types,
    /// The tables that all blocks of a configuration share. They do not change once it is read.
    maps: Arc<RwLock<Maps>>,
}

/// A charset in a directive.
#[derive(Debug, Clone, Default)]
enum Charset {
    #[default]
    Off,
    Name(Vec<u8>),
    Variable(Template),
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            charset: Charset::Off,
            source: Charset::Off,
            overrides: false,
            types: Types::of(TYPES),
            maps: Arc::default(),
        }
    }
}

impl Settings for Conf {}

/// Called when all lines of a block were read.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    let conf = CONF.of(&s.location);
    if let (Charset::Name(from), Charset::Name(to)) = (&conf.source, &conf.charset) {
        conf.write().need(from, to);
    }
    Ok(())
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "charset",
        help: "The charset that answers are sent in and that `Content-Type` names.",
        set: Set::Simple(charset),
    },
    Directive {
        name: "source_charset",
        help: "The charset that bodies are in; they are recoded if `charset` is another one.",
        set: Set::Simple(charset),
    },
    setting!(
        "override_charset",
        CONF.overrides,
        Line::flag,
        "Whether answers that name a charset themselves are recoded, too."
    ),
    types_setting!("charset_types", CONF.types, "Types of answers that get a charset."),
    Directive {
        name: "charset_map",
        help: "How one charset becomes another, and back.",
        set: Set::Block(charset_map),
    },
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_charset", directives: DIRECTIVES, finish, ..Module::NEW };

fn charset(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some(word) = d.args.first() else { return Ok(()) };
    let is_source = d.name.bytes == b"source_charset";
    let charset = match word.bytes.as_slice() {
        b"off" if !is_source => Charset::Off,
        [b'$', ..] => Charset::Variable(s.setup.line(d, word)?),
        name => {
            let name = s.setup.line_text(d, word, name);
            CONF.of(&s.location).write().add(&name);
            Charset::Name(name.into_owned())
        }
    };
    let conf = CONF.change(&mut s.location);
    *if is_source { &mut conf.source } else { &mut conf.charset } = charset;
    Ok(())
}

fn charset_map(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    CONF.of(&s.location).write().read(d)
}

/// Called when the whole configuration was read. Fails if a pair of charsets has no table.
pub fn check(conf: &Conf) -> Result<(), Error> {
    match conf.read().missing() {
        None => Ok(()),
        Some((from, to)) => Err(Error::emerg(no_map(from, to))),
    }
}

fn no_map(from: &[u8], to: &[u8]) -> String {
    let (from, to) = (weir_log::Bytes(from), weir_log::Bytes(to));
    format!("no \"charset_map\" between the charsets \"{from}\" and \"{to}\"")
}

impl Conf {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Maps> {
        self.maps.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Maps> {
        self.maps.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Header filter.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    let conf = CONF.of(r.conf());
    // The body of a subrequest is converted to the charset of its main request.
    let to = match &r.sub {
        Some(sub) => Some(sub.charset.clone()).filter(|charset| !charset.is_empty()),
        None => destination(r, conf)?,
    };
    let Some(to) = to else { return Ok(()) };
    let Some(from) = source(r, conf)? else {
        name(r, to, Response::name_charset);
        return Ok(());
    };
    if from.eq_ignore_ascii_case(&to) {
        name(r, to, Response::set_charset);
        return Ok(());
    }
    let maps = conf.read();
    let known = maps.knows(&from) && maps.knows(&to);
    if known && r.response.is_coded() {
        return Ok(());
    }
    let Some(table) = maps.table(&from, &to) else {
        let doing = if r.contexts.upstream.attempts.is_empty() { "" } else { reading(r) };
        r.log(Level::Error, format_args!("{}{doing}", no_map(&from, &to)));
        return Ok(());
    };
    drop(maps);
    if table.changes_length() && r.is_main() {
        r.response.content_length = None;
    }
    name(r, to, Response::set_charset);
    r.add_body_filter(Box::new(Recode::new(table)));
    Ok(())
}

/// The charset that the response is sent in.
fn destination(r: &mut Request, conf: &'static Conf) -> Result<Option<Vec<u8>>, Step> {
    if r.response.content_type.is_empty() {
        return Ok(None);
    }
    let named = r.response.override_charset.take().filter(|charset| !charset.is_empty());
    if let Some(charset) = named {
        if conf.read().knows(&charset) {
            return Ok(Some(charset));
        }
        let charset = weir_log::Bytes(&charset);
        let text = format_args!("unknown charset \"{charset}\" to override{}", reading(r));
        r.log(Level::Error, text);
        return Ok(None);
    }
    if matches!(conf.charset, Charset::Off) {
        return Ok(None);
    }
    let applies = match r.response.charset.is_empty() {
        true => conf.types.matches(&r.response.content_type),
        false => conf.overrides,
    };
    if !applies { Ok(None) } else { value(r, &conf.charset) }
}

/// The charset of the body, if the response or the configuration says it.
fn source(r: &mut Request, conf: &'static Conf) -> Result<Option<Vec<u8>>, Step> {
    if !r.response.charset.is_empty() {
        return Ok(Some(r.response.charset.clone()));
    }
    value(r, &conf.source)
}

fn value(r: &mut Request, charset: &'static Charset) -> Result<Option<Vec<u8>>, Step> {
    Ok(match charset {
        Charset::Off => None,
        Charset::Name(name) => Some(name.clone()),
        Charset::Variable(template) => Some(template.eval(r).into_owned()),
    })
}

/// Whether pages generated by this server are sent in UTF-8.
pub fn is_utf8(r: &mut Request) -> bool {
    let charset = value(r, &CONF.of(r.conf()).charset);
    charset.is_ok_and(|name| name.is_some_and(|name| name.eq_ignore_ascii_case(b"utf-8")))
}

/// Sets the charset in the head of a main request's response.
fn name(r: &mut Request, charset: Vec<u8>, set: fn(&mut Response, Vec<u8>)) {
    if !r.is_main() {
        return;
    }
    // As in nginx: old browsers used the charset of a redirect for the page that it leads to.
    let redirect = matches!(r.response.status, 301 | 302);
    set(&mut r.response, if redirect { Vec::new() } else { charset });
}
