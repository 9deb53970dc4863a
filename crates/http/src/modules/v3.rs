//! Settings of HTTP/3 and QUIC; what they are for is in `crate::http3`. nginx: ngx_http_v3_module.

use weir_conf::{Directive as Line, Error};
use weir_quic::HostKey;

use crate::carrier::Protocol;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};

const DIRECTIVES: &[Directive] = &[
    setting!(
        "http3",
        core.http3.enabled,
        |d: &Line| d.flag(),
        "Speaks HTTP/3 to clients of `listen ... quic` that ask for it."
    ),
    setting!(
        "http3_max_concurrent_streams",
        core.http3.max_concurrent_streams,
        |d: &Line| d.number(),
        "How many requests of a connection a client may make at once."
    ),
    setting!(
        "http3_stream_buffer_size",
        core.http3.stream_buffer_size,
        |d: &Line| d.size(),
        "How much of a body a client may send before it is read."
    ),
    setting!(
        "quic_retry",
        core.http3.retry,
        |d: &Line| d.flag(),
        "Lets each new client show first that its address is its own. That costs a round trip, and keeps forged \
         addresses out."
    ),
    setting!(
        "quic_gso",
        core.http3.gso,
        |d: &Line| d.flag(),
        "Sends many datagrams with one call (UDP_SEGMENT), where the kernel and the network card can."
    ),
    Directive {
        name: "quic_host_key",
        help: "A file with the secret of which connection ids and tokens are made; without it weir makes one at its start. \
               Servers that share an address should share it.",
        set: Set::Simple(host_key),
    },
    setting!(
        "quic_active_connection_id_limit",
        core.http3.ids,
        ids,
        "Accepted: weir remembers five of a client's connection ids."
    ),
];

/// The module.
pub const MODULE: Module = Module {
    name: "http_v3",
    directives: DIRECTIVES,
    init: |setup| {
        setup.variables.define("http3", |r, out| {
            if r.carrier.protocol() == Protocol::Http3 {
                out.extend_from_slice(b"h3");
            }
            true
        });
    },
    ..Module::NEW
};

fn ids(d: &Line) -> Result<u64, Error> {
    match d.number()? {
        n @ 2.. => Ok(n),
        _ => Err(d.problem("value is too small")),
    }
}

fn host_key(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some(word) = d.args.first() else { return Ok(()) };
    let name = word.lossy();
    let read = s.setup.tls().files.read(word.bytes.as_ref());
    let bytes = read.map_err(|e| d.error(format!("cannot read \"{name}\" {e}")))?;
    if bytes.is_empty() {
        return Err(d.error(format!("\"{name}\" is empty")));
    }
    Scope::change(&mut s.location.core).http3.host_key = Some(HostKey::new(&bytes));
    Ok(())
}
