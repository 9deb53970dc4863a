//! Removes what a request names: `..._cache_purge`, as in nginx's commercial edition and as in the module ngx_cache_purge.

use std::sync::Arc;

use bytes::Bytes;
use weir_cache::Cache;
use weir_cache::purge::{Which, purge as remove};
use weir_conf::{Directive as Line, Error, Word};
use weir_log::{Cause, Level};
use weir_proto::uri::escape_html;
use weir_values::{Cidr, Template};

use super::{Caching, predicates};
use crate::config::scope::Scope;
use crate::modules::cache_purge;
use crate::phases::Step;
use crate::request::Request;
use crate::site::location::Kind;
use crate::upstream::protocol::Protocol;

/// Which requests remove something.
#[derive(Debug, Clone, Default)]
pub enum Purge {
    /// None.
    #[default]
    Never,
    /// Those of whose values one is neither empty nor `0`.
    If(Vec<Template>),
    /// Those with a method of their own.
    By(Arc<Method>),
}

/// `METHOD [from ADDRESS ...]`
#[derive(Debug, Clone)]
pub struct Method {
    name: Vec<u8>,
    /// Who may; nobody is told of here: anybody.
    from: Option<Vec<Cidr>>,
}

/// `..._cache_purge` in one of its forms: `None` for the one that makes its location remove and nothing else. Values
/// have variables in them, and nothing else begins with one.
pub fn read(s: &mut Scope<'_, '_>, d: &Line, name: &str) -> Result<Option<Purge>, Error> {
    let [first, more @ ..] = d.args.as_slice() else { return Ok(None) };
    if s.setup.template(d, first)?.constant().is_none() {
        return predicates(s, d).map(|values| Some(Purge::If(values)));
    }
    let from = match more {
        [] if first.is("off") => return Ok(Some(Purge::Never)),
        [] => None,
        [key] => {
            if matches!(s.place.kind, Kind::Server) {
                return Err(d.problem("(separate location syntax) is not allowed here"));
            }
            cache_purge::set(s, d, first, key, name)?;
            return Ok(None);
        }
        [from, who @ ..] if from.is("from") => addresses(d, who)?,
        [other, ..] => return Err(d.invalid("parameter", other)),
    };
    let name = if first.is("on") { b"PURGE".to_vec() } else { first.bytes.clone() };
    Ok(Some(Purge::By(Arc::new(Method { name, from }))))
}

fn addresses(d: &Line, words: &[Word]) -> Result<Option<Vec<Cidr>>, Error> {
    if words.first().is_some_and(|word| word.is("all")) {
        return Ok(None);
    }
    let read = |word: &Word| match Cidr::parse(&word.bytes) {
        Some((cidr, _)) => Ok(cidr),
        None => Err(d.invalid("parameter", word)),
    };
    words.iter().map(read).collect::<Result<_, _>>().map(Some)
}

impl Purge {
    /// Another line; `first`: the first of its block.
    pub fn add(&mut self, d: &Line, other: Purge, first: bool) -> Result<(), Error> {
        match (self, other) {
            (this, other) if first => *this = other,
            (Purge::If(values), Purge::If(more)) => values.extend(more),
            _ => return Err(d.problem("is duplicate")),
        }
        Ok(())
    }
}

/// The end of a request that removes something, if this one does.
pub async fn asked<P: Protocol>(r: &mut Request, caching: &Caching, protocol: &P) -> Option<Step> {
    let told = match &caching.purge {
        Purge::Never => return None,
        Purge::If(values) if !Template::any_is_true(values, r) => return None,
        Purge::If(_) => SILENT,
        Purge::By(method) => {
            if r.method_name() != method.name {
                return None;
            }
            let peer = r.peer();
            let may = |list: &Vec<Cidr>| list.iter().any(|cidr| cidr.contains(peer));
            if !method.from.as_ref().is_none_or(may) {
                return Some(Step::Status(403));
            }
            TOLD
        }
    };
    let cache = match caching.zone.cache(r) {
        Ok(Some(cache)) => cache,
        Ok(None) => return Some(Step::Status(404)),
        Err(step) => return Some(step),
    };
    let text = super::key_text(r, caching, protocol);
    Some(Box::pin(purge(r, &cache, text, told)).await)
}

/// How a client hears of what was done.
#[derive(Debug, Clone, Copy)]
pub struct Telling {
    page: bool,
    /// The status where there was nothing.
    nothing: u16,
}

/// As the commercial edition has it.
const SILENT: Telling = Telling { page: false, nothing: 404 };
/// As the module has it.
pub const TOLD: Telling = Telling { page: true, nothing: 412 };

/// Removes one answer, or all whose keys begin with what stands before a `*`.
pub async fn purge(r: &mut Request, cache: &Arc<Cache>, text: Vec<u8>, told: Telling) -> Step {
    let mut name = text.clone();
    let which = match name.pop_if(|last| *last == b'*') {
        Some(_) => Which::Prefix(name),
        None => Which::Key(name),
    };
    match remove(cache, which, r.event_loop.handle.files()).await {
        Ok(0) => Step::Status(told.nothing),
        Ok(_) if told.page => {
            r.response.status = 200;
            r.response.content_type.extend_from_slice(b"text/html");
            Step::Respond(page(&text))
        }
        Ok(_) => {
            r.response.status = 204;
            Step::Respond(Bytes::new())
        }
        Err(error) => {
            let (path, cause) = (cache.settings.place.directory.display(), Cause(&error));
            r.log(Level::Crit, format_args!("opendir() \"{path}\" failed {cause}"));
            Step::Status(500)
        }
    }
}

fn page(key: &[u8]) -> Bytes {
    let mut out =
        b"<html>\r\n<head><title>Successful purge</title></head>\r\n<body bgcolor=\"white\">\r\n\
        <center><h1>Successful purge</h1>\r\n<br>Key : "
            .to_vec();
    escape_html(key, &mut out);
    out.extend_from_slice(b"\r\n</center>\r\n</body>\r\n</html>\r\n");
    Bytes::from(out)
}
