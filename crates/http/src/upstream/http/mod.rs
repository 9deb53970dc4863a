//! HTTP as it is spoken to servers, whichever module asks: the headers that a configuration sets, a request's own
//! path, its fields over HTTP/2, and the reader of answers.

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

/// Where requests are passed to.
#[derive(Debug, Clone)]
pub enum To {
    /// A group, and what its URL says.
    Group(GroupId, Vars),
    /// A URL with variables in it.
    Computed(Template),
}

/// How TLS is opened to the host that a location's URL names.
pub fn secure(r: &mut Request, tls: &'static Settings) -> Option<UpstreamTls> {
    let host = r.contexts.upstream.vars.as_ref().map(|vars| vars.host.clone());
    tls.secure(r, &host.unwrap_or_default())
}
