//! Requests that purge: `..._cache_purge`, as in nginx's commercial edition and in the module
//! ngx_cache_purge.

use std::sync::Arc;

use bytes::Bytes;
use weir_cache::purge::{Which, purge as remove};
use weir_cache::{Cache, Tags};
use weir_log::{Cause, Level};
use weir_proto::http1::HeaderId;
use weir_proto::uri::escape_html;
use weir_values::{Cidr, Template};

use super::conf::{Caching, Purge};
use super::key::key_text;
use crate::phases::Step;
use crate::request::Request;
use crate::upstream::protocol::Protocol;

/// Purges if this request asks for it, and ends it.
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
    let cache = match caching.zone.cache(r, caching.prefix) {
        Ok(Some(cache)) => cache,
        Ok(None) => return Some(Step::Status(404)),
        Err(step) => return Some(step),
    };
    let origin = origin(r);
    let tags = Tags::of(r.headers(), &origin);
    if !tags.all.is_empty() {
        return Some(Box::pin(remove_all(r, &cache, Which::Tagged(tags, origin), b"", told)).await);
    }
    let text = key_text(r, caching, protocol);
    Some(Box::pin(purge(r, &cache, text, told)).await)
}

/// The form of the answer to a purge.
#[derive(Debug, Clone, Copy)]
pub struct Telling {
    page: bool,
    /// The status if nothing was purged.
    nothing: u16,
}

/// As in nginx's commercial edition.
const SILENT: Telling = Telling { page: false, nothing: 404 };
/// As in the module.
pub const TOLD: Telling = Telling { page: true, nothing: 412 };

/// Purges the answer of a key. If the text ends with `*`, purges all answers whose keys have the
/// rest as their prefix.
pub async fn purge(r: &mut Request, cache: &Arc<Cache>, text: Vec<u8>, told: Telling) -> Step {
    let mut name = text.clone();
    let which = match name.pop_if(|last| *last == b'*') {
        Some(_) => Which::Prefix(name),
        None => Which::Key(name),
    };
    remove_all(r, cache, which, &text, told).await
}

/// Purges answers. `text` is shown in the page of a success.
async fn remove_all(
    r: &mut Request,
    cache: &Arc<Cache>,
    which: Which,
    text: &[u8],
    told: Telling,
) -> Step {
    match remove(cache, which, r.event_loop.handle.files()).await {
        Ok(0) => Step::Status(told.nothing),
        Ok(_) if told.page => {
            r.response.status = 200;
            r.response.set_type(b"text/html");
            Step::Respond(page(text))
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

/// The origin of the requested URL: scheme, host and port.
pub fn origin(r: &Request) -> Vec<u8> {
    let scheme: &[u8] = if r.conn.is_tls() { b"https://" } else { b"http://" };
    let host = r.header(HeaderId::Host).unwrap_or_default();
    [scheme, &host.to_ascii_lowercase()].concat()
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
