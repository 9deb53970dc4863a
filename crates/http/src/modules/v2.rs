//! Settings of HTTP/2, which `crate::http2` uses. nginx: ngx_http_v2_module.

use weir_conf::{Directive as Line, Error};
use weir_proto::http2::frame::MAX_WINDOW;

use crate::carrier::Protocol;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};

const DIRECTIVES: &[Directive] = &[
    setting!(
        "http2",
        core.http2.enabled,
        |d: &Line| d.flag(),
        "Enables HTTP/2 for clients that negotiate it."
    ),
    setting!(
        "http2_max_concurrent_streams",
        core.http2.max_concurrent_streams,
        |d: &Line| d.number(),
        "The maximum number of concurrent streams of a connection; more are refused."
    ),
    setting!(
        "http2_body_preread_size",
        core.http2.body_preread_size,
        preread_size,
        "How much of a body a client may send before a handler reads it."
    ),
    setting!(
        "http2_chunk_size",
        core.http2.chunk_size,
        chunk_size,
        "The maximum size of frames of a body. Other streams may send between two frames."
    ),
    Directive {
        name: "http2_recv_buffer_size",
        help: "Accepted: weir sizes the receive buffers of its loops itself.",
        set: Set::Simple(recv_buffer_size),
    },
    Directive {
        name: "http2_pool_size",
        help: "Accepted: weir allocates what it needs.",
        set: Set::Simple(pool_size),
    },
    Directive {
        name: "http2_streams_index_size",
        help: "Accepted: weir sizes its tables itself.",
        set: Set::Simple(streams_index_size),
    },
    obsolete(
        "http2_idle_timeout",
        "Accepted, with a warning, though obsolete: `keepalive_timeout` is used.",
    ),
    obsolete(
        "http2_max_concurrent_pushes",
        "Accepted, with a warning, though obsolete: there is no server push any more.",
    ),
    obsolete(
        "http2_max_field_size",
        "Accepted, with a warning, though obsolete: `large_client_header_buffers` is used.",
    ),
    obsolete(
        "http2_max_header_size",
        "Accepted, with a warning, though obsolete: `large_client_header_buffers` is used.",
    ),
    obsolete(
        "http2_max_requests",
        "Accepted, with a warning, though obsolete: `keepalive_requests` is used.",
    ),
    obsolete(
        "http2_push",
        "Accepted, with a warning, though obsolete: there is no server push any more.",
    ),
    obsolete(
        "http2_push_preload",
        "Accepted, with a warning, though obsolete: there is no server push any more.",
    ),
    obsolete(
        "http2_recv_timeout",
        "Accepted, with a warning, though obsolete: `client_header_timeout` is used.",
    ),
];

/// The module.
pub const MODULE: Module = Module {
    name: "http_v2",
    directives: DIRECTIVES,
    init: |setup| {
        setup.variables.define("http2", |r, out| {
            if r.carrier.protocol() == Protocol::Http2 {
                out.extend_from_slice(if r.conn.is_tls() { b"h2" } else { b"h2c" });
            }
            true
        });
    },
    ..Module::NEW
};

/// A directive that nginx has removed. A warning names its replacement.
const fn obsolete(name: &'static str, help: &'static str) -> Directive {
    Directive { name, help, set: Set::Simple(warn) }
}

fn warn(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let name = d.name.lossy();
    let instead = match &*name {
        "http2_idle_timeout" => Some("keepalive_timeout"),
        "http2_max_field_size" | "http2_max_header_size" => Some("large_client_header_buffers"),
        "http2_max_requests" => Some("keepalive_requests"),
        "http2_recv_timeout" => Some("client_header_timeout"),
        _ => None,
    };
    let text = format!("the \"{name}\" directive is obsolete");
    s.setup.warnings.push(d.warning(match instead {
        Some(other) => format!("{text}, use the \"{other}\" directive instead"),
        None => format!("{text}, ignored"),
    }));
    Ok(())
}

fn preread_size(d: &Line) -> Result<u64, Error> {
    let size = d.size()?;
    if size > u64::from(MAX_WINDOW) {
        return Err(d.error(format!("the maximum body preread buffer size is {MAX_WINDOW}")));
    }
    Ok(size)
}

fn chunk_size(d: &Line) -> Result<u64, Error> {
    match d.size()? {
        0 => Err(d.error("the http2 chunk size cannot be zero")),
        size => Ok(size),
    }
}

fn recv_buffer_size(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    if d.size()? <= 16 {
        return Err(d.problem("value is too small"));
    }
    Ok(())
}

fn pool_size(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let size = d.size()?;
    if size < 112 {
        return Err(d.error("the pool size must be no less than 112"));
    }
    if !size.is_multiple_of(16) {
        return Err(d.error("the pool size must be a multiple of 16"));
    }
    Ok(())
}

fn streams_index_size(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    if d.number()?.is_power_of_two() { Ok(()) } else { Err(d.problem("must be a power of two")) }
}
