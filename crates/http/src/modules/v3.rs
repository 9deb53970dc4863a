//! Settings of HTTP/3 and QUIC, which `crate::http3` uses. nginx: ngx_http_v3_module.

use weir_conf::{Contexts as Place, Directive as Line, Error};
use weir_proto::http1::Version;
use weir_quic::{Congestion, HostKey};

use crate::carrier::Protocol;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::phases::Step;
use crate::request::Request;
use crate::site::settings::LocationConf;

const DIRECTIVES: &[Directive] = &[
    setting!(
        "http3",
        core.http3.enabled,
        |d: &Line| d.flag(),
        "Enables HTTP/3 for clients of `listen ... quic` that negotiate it."
    ),
    setting!(
        "http3_hq",
        core.http3.hq,
        |d: &Line| d.flag(),
        "Enables HTTP/0.9 over QUIC (`hq-interop`), for interoperability tests."
    ),
    setting!(
        "http3_max_concurrent_streams",
        core.http3.max_concurrent_streams,
        |d: &Line| d.number(),
        "The maximum number of concurrent requests of a connection."
    ),
    setting!(
        "http3_stream_buffer_size",
        core.http3.stream_buffer_size,
        |d: &Line| d.size(),
        "How much of a body a client may send before a handler reads it."
    ),
    setting!(
        "quic_retry",
        core.http3.retry,
        |d: &Line| d.flag(),
        "Validates the address of each new client with a Retry packet. That costs a round trip and protects against forged addresses."
    ),
    setting!(
        "quic_gso",
        core.http3.gso,
        |d: &Line| d.flag(),
        "Sends many datagrams with one call (UDP_SEGMENT), if the kernel and the network card support it."
    ),
    setting!(
        "quic_congestion",
        core.http3.congestion,
        congestion,
        "The congestion control: `cubic`, or `bbr`, which does not take each loss for congestion."
    ),
    setting!(
        "http3_alt_svc",
        core.http3.alt_svc,
        |d: &Line| d.flag(),
        "Adds `Alt-Svc` to responses over TLS of a server that listens with `quic`, so that clients use HTTP/3 next time."
    ),
    Directive {
        name: "quic_host_key",
        help: "A file with the secret for connection IDs and tokens. By default weir makes one when it starts. Servers that share an address should share the file.",
        set: Set::Simple(host_key),
    },
    setting!(
        "quic_active_connection_id_limit",
        core.http3.ids,
        Line::number,
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
                let is_line = r.version == Version::Http09;
                out.extend_from_slice(if is_line { b"hq" } else { b"h3" });
            }
            true
        });
    },
    finish,
};

/// `ma` of `Alt-Svc`: how long a client may remember it, in seconds.
const REMEMBERED: u32 = 86_400;

/// Whether responses of a location advertise HTTP/3.
pub fn wanted(conf: &LocationConf) -> bool {
    conf.core.http3.offer.is_some()
}

/// Advertises HTTP/3 to clients over TLS and TCP, unless the response already has `Alt-Svc`.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    const NAME: &[u8] = b"Alt-Svc";
    let is_over_tcp = r.conn.is_tls() && r.carrier.protocol() != Protocol::Http3;
    if let Some(offer) = &r.conf().core.http3.offer
        && r.is_main()
        && is_over_tcp
        && r.response.headers.get(NAME).is_none()
    {
        r.response.headers.add(NAME, offer);
    }
    Ok(())
}

/// Writes the server's `Alt-Svc`, with the ports of `listen ... quic`.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    if s.context != Place::SERVER {
        return Ok(());
    }
    let http3 = &s.location.core.http3;
    let mut ports: Vec<u16> = Vec::new();
    if http3.enabled && http3.alt_svc {
        let quic = s.server.listens.iter().filter(|line| line.protocols.quic);
        ports.extend(quic.filter_map(|line| line.listen.address.port()));
        ports.sort_unstable();
        ports.dedup();
    }
    let each = ports.iter().map(|port| format!("h3=\":{port}\"; ma={REMEMBERED}"));
    let offer = each.collect::<Vec<_>>().join(", ").into_bytes();
    if !offer.is_empty() {
        Scope::change(&mut s.location.core).http3.offer = Some(offer);
    }
    Ok(())
}

fn congestion(d: &Line) -> Result<Congestion, Error> {
    let Some(word) = d.args.first() else { return Ok(Congestion::Cubic) };
    match word.bytes.as_slice() {
        b"cubic" => Ok(Congestion::Cubic),
        b"bbr" => Ok(Congestion::Bbr),
        _ => Err(d.error_at(word, format!("invalid value \"{}\"", word.lossy()))),
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
