//! HTTP/1 heads and bodies.
//!
//! The rules are those of nginx's `ngx_http_parse.c` and of its use in `ngx_http_request.c` and
//! `ngx_http_proxy_module.c`. Where RFC 9112 leaves a choice, weir makes nginx's choice, since
//! clients and upstreams are known to work with it.

mod body;
mod chunked;
mod compose;
mod error;
mod fields;
mod head;
mod line;
mod method;
mod names;
mod request;
mod response;
mod window;

pub use body::{BodyDecoder, BodyError, BodyStep, chunk_end, chunk_head, last_chunk};
pub use chunked::Trailers;
pub use compose::{ComposeError, Composer, HeadDraft};
pub use error::HeadError;
pub use fields::{FieldsError, FieldsProgress, FieldsReader};
pub(crate) use head::offset;
pub use head::{ConnectionHeader, RequestHead};
pub use method::{Method, Version};
pub use names::{HeaderId, HeaderLine};
pub use request::{HeadLimits, HeadProgress, RequestParser};
pub use response::{ResponseError, ResponseHead, ResponseParser};

#[cfg(test)]
mod tests;
