//! Tunnels for clients that send CONNECT. nginx: ngx_http_tunnel_module.

use std::convert::Infallible;

use weir_conf::{Directive as Line, Error};
use weir_engine::Boxed;
use weir_proto::http1::Method;

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::phases;
use crate::phases::{Later, Step};
use crate::request::Request;
use crate::site::content::ContentHandler;
use crate::site::settings::{Key, Settings};
use crate::upstream::driver;
use crate::upstream::pass::{By, Pass};
use crate::upstream::passing::upstream_directives;
use crate::upstream::{
    Answer, Found, Outgoing, OutgoingError, Protocol, Reader, Taken, UpstreamConf,
};

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    passing: UpstreamConf,
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = upstream_directives!(
    CONF, "tunnel_": OWN;
    passing only(
        "bind",
        "socket_keepalive",
        "socket_rcvbuf",
        "socket_sndbuf",
        "connect_timeout",
        "send_timeout",
        "send_lowat",
        "buffer_size",
        "read_timeout",
        "next_upstream",
        "next_upstream_tries",
        "next_upstream_timeout",
    )
);

const OWN: &[Directive] = &[Directive {
    name: "tunnel_pass",
    help: "Opens a tunnel for CONNECT, to the server that the client names or to this address.",
    set: Set::Simple(pass),
}];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_tunnel", directives: DIRECTIVES, ..Module::NEW };

/// `tunnel_pass [ADDRESS]`
fn pass(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    s.server.head_limits.allow_connect = true;
    let implied = d.args.is_empty().then_some(b"$host:$request_port".as_slice());
    let pass = Pass::read(s, d, implied)?;
    s.answer_with(CONTENT.with(pass));
    Ok(())
}

/// The content handler.
static CONTENT: ContentHandler<Pass> = ContentHandler {
    module: "tunnel",
    in_limit_except: true,
    optional: false,
    run: |r, settings| phases::Answer::Later(handler(r, settings)),
};

/// Handles a request in a location with `tunnel_pass`.
fn handler<'a>(r: &'a mut Request, pass: &'static Pass) -> Later<'a> {
    Boxed::new(move || async move {
        if r.method != Method::Connect {
            return Step::Status(405);
        }
        let conf = CONF.of(r.conf());
        let target = match pass.target(r, By::Client) {
            Ok(target) => target,
            Err(step) => return step,
        };
        driver::serve(r, &conf.passing, target, &mut Opaque).await
    })
}

/// The protocol of a tunnel. The upstream connection is the answer, and its bytes are passed on
/// unread.
struct Opaque;

impl Protocol for Opaque {
    type Reader = Self;

    fn reader(&mut self) -> &mut Self {
        self
    }

    fn scheme(&self) -> &'static str {
        ""
    }

    fn is_tunnel(&self) -> bool {
        true
    }

    fn sends_body(&self) -> bool {
        false
    }

    fn names_itself(&self) -> bool {
        false
    }

    fn request(&mut self, _: &mut Request) -> Result<Outgoing, OutgoingError> {
        Ok(Outgoing::default())
    }

    fn cache_key(&self, _: &mut Request, _: &mut Vec<u8>) {}
}

impl Reader for Opaque {
    type Error = Infallible;

    fn restart(&mut self) {}

    fn head(&mut self, _: &mut Request, _: &mut Vec<u8>) -> Result<Found, Infallible> {
        Ok(Found::Head(Answer { status: 200, ..Answer::default() }))
    }

    fn has_body(&mut self, _: &Request, _: &Answer) -> bool {
        false
    }

    fn body(&mut self, _: &mut Vec<u8>) -> Result<Taken, Infallible> {
        Ok(Taken { done: true, extra: None })
    }

    fn ends_with_connection(&self) -> bool {
        true
    }
}
