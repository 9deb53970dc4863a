//! TLS for clients. nginx: ngx_http_ssl_module.

use std::sync::Arc;

use weir_conf::{Contexts as Place, Directive as Line, Error};
use weir_ssl::ocsp::LookUp;
use weir_ssl::server::{self, ServerContext, Shown, Spoken, TlsSubject};
use weir_ssl::{DirectiveUse, SslDirective};
use weir_tls::Negotiated;

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::config::table::together;
use crate::http3::HQ;
use crate::modules::lua;
use crate::request::Request;
use crate::site::settings::{Key, Settings};

pub use weir_ssl::server::Conf;

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module {
    name: "http_ssl",
    directives: &DIRECTIVES,
    init: |setup| {
        server::define(&mut setup.variables);
        server::define_more(&mut setup.variables);
    },
    finish,
};

const DIRECTIVES: [Directive; COMMON.len() + OWN.len()] = together(&COMMON, OWN);

/// The directives that sessions of `stream` and `mail` have as well.
const COMMON: [Directive; ROWS.len()] = {
    let mut all = [OWN[0]; ROWS.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = Directive { name: ROWS[i].name, help: ROWS[i].help, set: Set::Simple(common) };
        i += 1;
    }
    all
};

const ROWS: &[SslDirective<Request, Conf>] = server::rows();

const OWN: &[Directive] = &[
    setting!(
        "ssl_buffer_size",
        CONF.buffer_size,
        Line::size,
        "The maximum size of records that are sent."
    ),
    setting!(
        "ssl_early_data",
        CONF.early_data,
        Line::flag,
        "Whether a resumed session may bring a request with its first flight (TLS 1.3). The request is served before \
         the handshake is complete: see `$ssl_early_data`. Tickets hold no sessions then."
    ),
];

fn common(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let said = DirectiveUse { line: d, first: s.first(d) };
    let conf = CONF.change(&mut s.location);
    SslDirective::read(ROWS, conf, said, &mut s.setup.tls())
}

impl Settings for Conf {}

/// Called when all lines of a block were read.
fn finish(scope: &mut Scope<'_, '_>) -> Result<(), Error> {
    if scope.context == Place::SERVER {
        let conf = &scope.location;
        let scripted = lua::wants_client_hello(conf) || lua::wants_certificate(conf);
        if scripted && !CONF.of(conf).speaks_tls() {
            return Err(Error::emerg("no ssl configured for the server"));
        }
        scope.server.ssl = build(scope)?;
    }
    Ok(())
}

/// Makes the server's TLS context, if its settings require one.
fn build(s: &mut Scope<'_, '_>) -> Result<Option<Arc<ServerContext>>, Error> {
    let core = &s.location.core;
    let look_up = LookUp { resolver: core.resolver.clone(), timeout: core.resolver_timeout };
    let conf = &s.location;
    let keeps = lua::wants_session_fetch(conf) || lua::wants_session_store(conf);
    let scripted = s.setup.has_hello_script || lua::wants_certificate(conf) || keeps;
    let spoken = Spoken { tcp: protocols(s), quic: over_quic(s), scripted };
    server::build(CONF.of(&s.location), &mut s.setup.tls(), look_up, spoken, b"")
}

/// The ALPN protocols over QUIC, if the server listens with it.
fn over_quic(s: &Scope<'_, '_>) -> Option<Vec<Vec<u8>>> {
    let http3 = &s.location.core.http3;
    let spoken = [(http3.enabled, &b"h3"[..]), (http3.hq, HQ)];
    let names = spoken.iter().filter(|(is_on, _)| *is_on).map(|(_, name)| name.to_vec());
    let listens = s.server.listens.iter().any(|l| l.protocols.quic);
    listens.then(|| names.collect())
}

/// The ALPN protocols over TCP.
fn protocols(s: &Scope<'_, '_>) -> Vec<Vec<u8>> {
    let http2 = s.location.core.http2.enabled || s.server.listens.iter().any(|l| l.protocols.http2);
    let names: &[&[u8]] = &[b"h2", b"http/1.1", b"http/1.0", b"http/0.9"];
    names.iter().filter(|name| http2 || **name != b"h2").map(|name| name.to_vec()).collect()
}

impl TlsSubject for Request {
    fn tls<T>(&self, look: impl FnOnce(&Negotiated<'_>) -> T) -> Option<T> {
        self.conn.with_tls(look)
    }

    fn shown(&self) -> Option<&Shown> {
        let secure = self.conn.tls.as_deref().filter(|secure| !secure.plain);
        let before = || self.conn.before.as_ref()?.shown.as_deref();
        secure.map(|secure| &secure.shown).or_else(before)
    }
}
