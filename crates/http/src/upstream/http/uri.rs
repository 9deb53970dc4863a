//! The URI of a request to a server. nginx: ngx_http_proxy_create_request.

use weir_proto::uri::{Escape, escape};

use crate::request::Request;

/// The inputs of the URI.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// The URI in `proxy_pass`.
    pub own: &'a [u8],
    /// `own` was computed from variables and is complete.
    pub computed: bool,
    /// The location's name, which `own` replaces.
    pub location: &'a [u8],
    /// The request's path still begins with the location's name: no `rewrite ... break` changed it.
    pub location_holds: bool,
    /// Path and query as the client sent them, if nothing has changed them.
    pub as_sent: Option<&'a [u8]>,
    /// The request's path, decoded.
    pub path: &'a [u8],
    /// The path had escapes or comes from an internal redirect, so it must be escaped again.
    pub escapes: bool,
    /// The query.
    pub args: &'a [u8],
}

impl<'a> Parts<'a> {
    /// The request's own URI.
    pub fn own(r: &'a Request) -> Parts<'a> {
        Parts {
            own: b"",
            computed: false,
            location: b"",
            location_holds: false,
            as_sent: r.target_as_sent(),
            path: &r.path,
            escapes: true,
            args: &r.args,
        }
    }

    /// The path after the location's name, if `own` replaces that.
    fn rest(&self) -> &[u8] {
        let cut = if self.location_holds && !self.own.is_empty() { self.location.len() } else { 0 };
        self.path.get(cut.min(self.path.len())..).unwrap_or_default()
    }

    /// Whether the URI climbs out of `own`: with `location /api { proxy_pass http://b/v1/; }`,
    /// `/api../x` is `/v1/../x`.
    pub fn climbs(&self) -> bool {
        let put_behind = !self.computed && self.location_holds && self.own.ends_with(b"/");
        let rest = self.rest();
        put_behind && rest.starts_with(b"..") && matches!(rest.get(2), None | Some(b'/'))
    }
}

/// Appends the URI.
pub fn write(parts: &Parts<'_>, out: &mut Vec<u8>) {
    if parts.computed && !parts.own.is_empty() {
        out.extend_from_slice(parts.own);
        return;
    }
    if let Some(target) = parts.as_sent.filter(|_| parts.own.is_empty()) {
        out.extend_from_slice(target);
        return;
    }
    let rest = parts.rest();
    if parts.location_holds {
        out.extend_from_slice(parts.own);
    }
    if parts.escapes {
        escape(Escape::Uri, rest, out);
    } else {
        out.extend_from_slice(rest);
    }
    if !parts.args.is_empty() {
        out.push(b'?');
        out.extend_from_slice(parts.args);
    }
}
