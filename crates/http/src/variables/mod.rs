//! The variables of requests: their definitions, and how their values are read. Handlers read them
//! by templates.

use std::fmt::Arguments;

use weir_engine::Handle;
use weir_log::Level;
use weir_proto::http1::HeaderId;
use weir_proto::proxy_protocol::ProxyHeader;
use weir_values::{Get, Identity, Subject, geoip};

use crate::address::Address;
use crate::regex::Captures;
use crate::request::Request;

mod builtin;
mod prefixed;
mod value;

pub use builtin::{body_bytes, credentials, set_args, status};
pub use prefixed::upstream_header;
pub use value::{joined, same_name};
pub use weir_values::{NotStored, VariableId, VariableValues};

/// The variables of a site.
pub type Variables = weir_values::Variables<Request>;

/// The reader of a variable with a prefix: `$arg_x`, `$http_x` and alike.
pub fn prefixed(name: &[u8]) -> Option<Get<Request>> {
    prefixed::getter(name)
}

impl Subject for Request {
    const BLOCK: &'static str = "http";

    fn define(variables: &mut Variables) {
        builtin::define(variables);
    }

    fn prefixed(name: &[u8]) -> Option<Get<Request>> {
        prefixed::getter(name).or_else(|| geoip::without_database(name))
    }

    #[inline]
    fn variables(&self) -> &'static Variables {
        &self.site.variables
    }

    #[inline]
    fn values(&mut self) -> &mut VariableValues {
        &mut self.values
    }

    #[inline]
    fn captures(&mut self) -> &mut Captures {
        &mut self.captures
    }

    fn log(&self, level: Level, text: Arguments<'_>) {
        Request::log(self, level, text);
    }

    fn peer(&self) -> &Address {
        Request::peer(self)
    }

    fn local(&self) -> &Address {
        self.conn.local()
    }

    fn proxy(&self) -> Option<&ProxyHeader> {
        self.conn.proxy.get().map(|header| &**header)
    }

    fn number(&self) -> u64 {
        self.conn.number
    }

    fn handle(&self) -> &Handle {
        &self.event_loop.handle
    }

    fn identity(&self) -> Identity {
        self.event_loop.identity
    }

    fn local_time(&self) -> (i64, i32) {
        self.event_loop.local_time()
    }

    fn forwarded_for(&self) -> Vec<&[u8]> {
        self.head().all(HeaderId::XForwardedFor).map(|h| h.value.of(&self.buf)).collect()
    }
}
