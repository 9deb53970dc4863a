//! Makes the span of a request.

use std::time::Instant;

use weir_proto::http1::HeaderId;
use weir_proto::otlp::{AttributeValue, Attributes, TraceSpan, write_span};

use super::Traced;
use super::spans::SPANS;
use crate::modules::otel::CONF;
use crate::request::Request;
use crate::variables::{body_bytes, status};

/// Log phase handler: makes the span of a request that has ended.
pub fn log(r: &mut Request) {
    if !r.is_main() {
        return;
    }
    let Some(spans) = SPANS.of(&r.event_loop).0.clone() else { return };
    let sampled = super::CONTEXT.of(&r.contexts).filter(|traced| traced.own.sampled);
    let Some(Traced { parent, state, own, .. }) = sampled.cloned() else { return };
    let name = match &CONF.of(r.conf()).name {
        Some(name) => name.eval(r).into_owned(),
        None => r.location.name.to_vec(),
    };
    let status = status(r);
    let attributes = attributes(r, status);
    let (start, end) = times(r);
    let parent = parent.map(|parent| parent.span);
    let mut text = Vec::with_capacity(1024);
    let span = TraceSpan {
        trace: &own.trace,
        span: &own.span,
        parent: parent.as_ref(),
        state: &state,
        name: &name,
        start,
        end,
        failed: status >= 500,
        attributes: &attributes,
    };
    write_span(&span, &mut text);
    spans.add(&text);
}

/// The start and end of the request, in nanoseconds since 1970.
fn times(r: &Request) -> (u64, u64) {
    let handle = &r.event_loop.handle;
    let now = handle.now_or_later();
    let since = |at: Instant| now.saturating_duration_since(at).as_nanos() as u64;
    let wall = handle.wall();
    let turn = wall.secs.max(0).unsigned_abs() * 1_000_000_000 + u64::from(wall.msec) * 1_000_000;
    let end = turn + since(handle.now());
    (end.saturating_sub(since(r.started)), end)
}

/// The attributes of nginx's module, which follow the semantic conventions for HTTP of version
/// 1.16, and those of the configuration.
fn attributes(r: &mut Request, status: u16) -> Attributes {
    let mut all = Attributes::of_span();
    let number = |n: u64| AttributeValue::Number(i64::try_from(n).unwrap_or(i64::MAX));
    all.add(b"http.method", AttributeValue::Text(r.method_name()));
    all.add(b"http.target", AttributeValue::Text(r.text(r.head().target)));
    if !r.location.name.is_empty() {
        all.add(b"http.route", AttributeValue::Text(&r.location.name));
    }
    let is_tls = r.conn.is_tls();
    all.add(b"http.scheme", AttributeValue::Text(if is_tls { b"https" } else { b"http" }));
    if let Some(flavor) = r.text(r.head().protocol).strip_prefix(b"HTTP/") {
        all.add(b"http.flavor", AttributeValue::Text(flavor));
    }
    if let Some(agent) = r.header(HeaderId::UserAgent) {
        all.add(b"http.user_agent", AttributeValue::Text(agent));
    }
    let said = r.header(HeaderId::ContentLength).and_then(weir_conf::values::number);
    let length = said.or(r.body.length).unwrap_or(0);
    all.add(b"http.request_content_length", number(length));
    all.add(b"http.response_content_length", number(body_bytes(r)));
    if status != 0 {
        all.add(b"http.status_code", number(status.into()));
    }
    let host = match r.server.name() {
        "" => r.host.as_slice(),
        name => name.as_bytes(),
    };
    all.add(b"net.host.name", AttributeValue::Text(host));
    let usual = if is_tls { 443 } else { 80 };
    if let Some(port) = r.conn.local().port().filter(|port| *port != usual) {
        all.add(b"net.host.port", number(port.into()));
    }
    let mut address = Vec::new();
    r.peer().write_host(&mut address);
    all.add(b"net.sock.peer.addr", AttributeValue::Text(&address));
    all.add(b"net.sock.peer.port", number(r.peer().port().unwrap_or(0).into()));
    if let Some(quic) = r.conn.quic() {
        let path = quic.stats().path;
        let rtt = u64::try_from(path.rtt.as_micros()).unwrap_or(u64::MAX);
        all.add(b"net.transport", AttributeValue::Text(b"ip_udp"));
        all.add(b"quic.round_trip_us", number(rtt));
        all.add(b"quic.sent_packets", number(path.sent_packets));
        all.add(b"quic.lost_packets", number(path.lost_packets));
    }
    for (name, value) in &CONF.of(r.conf()).attributes {
        let value = value.eval(r);
        let is_list = [b"http.request.header.".as_slice(), b"http.response.header."]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        all.add(
            name,
            if is_list { AttributeValue::Texts(&value) } else { AttributeValue::Text(&value) },
        );
    }
    all
}
