//! HTTP to servers, for all modules: configured headers, the request's URI, its fields over HTTP/2,
//! and the parser of answers.

pub mod answer;
pub mod fields;
mod headers;
pub mod uri;

pub use answer::Answers;
pub use headers::SetHeaders;

use super::GroupId;
use super::tls::{Settings, UpstreamTls};
use crate::request::Request;
use crate::request::passed::Vars;
use weir_values::Template;

/// The target of `proxy_pass`.
#[derive(Debug, Clone)]
pub enum To {
    /// A group, and the parts of its URL.
    Group(GroupId, Vars),
    /// A URL with variables in it.
    Computed(Template),
}

/// The TLS settings for the host of the request's URL.
pub fn secure(r: &mut Request, tls: &'static Settings) -> Option<UpstreamTls> {
    let host = r.contexts.upstream.vars.as_ref().map(|vars| vars.host.clone());
    tls.secure(r, &host.unwrap_or_default())
}
