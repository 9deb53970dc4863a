//! Tunnels to the servers that clients name with CONNECT. nginx: ngx_http_tunnel_module.

use std::sync::Arc;

use weir_conf::{Directive as Line, Error};
use weir_log::Level;
use weir_proto::http1::Method;

use crate::answer::headers::Headers;
use crate::config::location::Kind;
use crate::config::scope::{Directive, Scope, Set};
use crate::config::table::{selected, together};
use crate::modules::{Module, Named, Settings};
use crate::phases::{Handler, Later, Step};
use crate::request::Request;
use crate::upstream::driver::{self, Target};
use crate::upstream::passing::passing_directives;
use crate::upstream::url::Url;
use crate::upstream::{Answer, Found, GroupId, Outgoing, Passing, Protocol, Taken};
use weir_values::Template;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    pass: Option<Pass>,
    /// The same of the block around, which `if` and `limit_except` take over.
    outer: Option<Pass>,
    passing: Passing,
}

/// Where tunnels lead.
#[derive(Debug, Clone)]
enum Pass {
    Group(GroupId),
    Computed(Template),
}

impl Settings for Conf {
    fn enter(conf: &mut Arc<Self>) {
        if conf.pass.is_some() || conf.outer.is_some() {
            let this = Arc::make_mut(conf);
            this.outer = this.pass.take();
        }
    }

    fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
        let inherits = matches!(s.place.kind, Kind::If | Kind::LimitExcept);
        if inherits && s.location.tunnel.pass.is_none() && s.location.tunnel.outer.is_some() {
            let conf = Scope::change(&mut s.location.tunnel);
            conf.pass = conf.outer.clone();
            let core = Scope::change(&mut s.location.core);
            core.handler.get_or_insert(Named { module: "tunnel", run: Handler::Later(handler) });
        }
        Ok(())
    }
}

const SHARED: [Directive; 12] = selected(
    passing_directives!(tunnel, "tunnel_"),
    [
        "tunnel_bind",
        "tunnel_socket_keepalive",
        "tunnel_socket_rcvbuf",
        "tunnel_socket_sndbuf",
        "tunnel_connect_timeout",
        "tunnel_send_timeout",
        "tunnel_send_lowat",
        "tunnel_buffer_size",
        "tunnel_read_timeout",
        "tunnel_next_upstream",
        "tunnel_next_upstream_tries",
        "tunnel_next_upstream_timeout",
    ],
);

const OWN: &[Directive] = &[Directive {
    name: "tunnel_pass",
    help: "CONNECT opens a tunnel, to the server that the client names or to this one.",
    set: Set::Simple(pass),
}];

const DIRECTIVES: [Directive; OWN.len() + SHARED.len()] = together(OWN, &SHARED);

/// The module.
pub const MODULE: Module = Module { name: "http_tunnel", directives: &DIRECTIVES, init: |_| {} };

/// `tunnel_pass [ADDRESS]`
fn pass(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    Scope::change(&mut s.location.core).handler =
        Some(Named { module: "tunnel", run: Handler::Later(handler) });
    s.server.head_limits.allow_connect = true;
    let text = d.args.first().map_or(b"$host:$request_port".as_slice(), |w| &w.bytes);
    let word = d.args.first().unwrap_or(&d.name);
    let value = s.setup.template_of(d, word, text)?;
    let pass = if value.constant().is_none() {
        Pass::Computed(value)
    } else {
        let url = Url::parse(text, false).map_err(|e| {
            let text = String::from_utf8_lossy(text);
            d.error_at(word, format!("{e} in upstream \"{text}\""))
        })?;
        Pass::Group(s.setup.upstreams.refer(d, word, url, NO_PORT)?)
    };
    Scope::change(&mut s.location.tunnel).pass = Some(pass);
    Ok(())
}

/// Nothing is assumed of a server whose port is not told.
const NO_PORT: u16 = 0;

/// Opens a tunnel.
fn handler(r: &mut Request) -> Later<'_> {
    Box::pin(async move {
        if r.method != Method::Connect {
            return Step::Status(405);
        }
        r.keepalive = false;
        let conf = &*r.conf().tunnel;
        let target = match &conf.pass {
            None => return Step::Next,
            Some(Pass::Group(id)) => Target::Configured(*id),
            Some(Pass::Computed(address)) => match compute(r, address) {
                Ok(target) => target,
                Err(step) => return step,
            },
        };
        driver::serve(r, &conf.passing, target, &mut Opaque).await
    })
}

fn compute(r: &mut Request, address: &Template) -> Result<Target, Step> {
    let text = address.eval(r).into_owned();
    let shown = String::from_utf8_lossy(&text);
    let url = Url::parse(&text, false).map_err(|e| {
        r.log(Level::Info, format_args!("{e} in upstream \"{shown}\""));
        Step::Status(500)
    })?;
    if url.port.is_none() && r.site.upstreams.find(&url.host, None, NO_PORT).is_none() {
        r.log(Level::Error, format_args!("no port in upstream \"{shown}\""));
        return Err(Step::Status(500));
    }
    Ok(Target::Url(Box::new(url), NO_PORT))
}

/// What goes through a tunnel is nobody's business: a connection is the answer.
struct Opaque;

impl Protocol for Opaque {
    fn scheme(&self) -> &'static str {
        ""
    }

    fn is_tunnel(&self) -> bool {
        true
    }

    fn sends_body(&self) -> bool {
        false
    }

    fn request(&mut self, _: &mut Request) -> Result<Outgoing, u16> {
        Ok(Outgoing::default())
    }

    fn cache_key(&self, _: &mut Request, _: &mut Vec<u8>) {}

    fn restart(&mut self) {}

    fn head(&mut self, _: &mut Request, _: &mut Vec<u8>) -> Result<Found, String> {
        Ok(Found::Head(Answer { status: 200, ..Answer::default() }))
    }

    fn has_body(&mut self, _: &Request, _: &Answer) -> bool {
        false
    }

    fn body(&mut self, _: &mut Vec<u8>) -> Result<Taken, String> {
        Ok(Taken { done: true, extra: None })
    }

    fn ends_with_connection(&self) -> bool {
        true
    }

    fn trailers(&self, _: &mut Headers) {}
}
