//! Both ends of the connection, and this server.

use std::net::IpAddr;
use std::os::fd::AsFd;

use weir_proto::proxy_protocol::Header;
use weir_sys::tcpinfo::{TcpInfo, tcp_info};

use super::{Read, number, put};
use crate::address::Address;
use crate::request::Request;

pub const TABLE: &[(&str, Read)] = &[
    ("remote_addr", |r, out| {
        r.peer().write_host(out);
        true
    }),
    ("remote_port", |r, out| port(out, r.peer().port())),
    ("binary_remote_addr", |r, out| {
        match r.peer() {
            Address::Inet(inet) => match inet.ip() {
                IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
                IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
            },
            other => other.write_host(out),
        }
        true
    }),
    ("server_addr", |r, out| {
        r.conn.local().write_host(out);
        true
    }),
    ("server_port", |r, out| port(out, r.conn.local().port())),
    ("connection", |r, out| number(out, r.conn.number)),
    ("connection_requests", |r, out| number(out, r.conn.requests.get())),
    ("pid", |r, out| number(out, u64::from(r.worker.identity.pid))),
    ("loop", |r, out| number(out, u64::from(r.worker.identity.index))),
    ("proxy_protocol_addr", |r, out| proxy(r, |header| put(out, &header.source))),
    ("proxy_protocol_port", |r, out| proxy(r, |header| port(out, Some(header.source_port)))),
    ("proxy_protocol_server_addr", |r, out| proxy(r, |header| put(out, &header.destination))),
    ("proxy_protocol_server_port", |r, out| {
        proxy(r, |header| port(out, Some(header.destination_port)))
    }),
    ("tcpinfo_rtt", |r, out| tcp(r, out, |info| info.rtt)),
    ("tcpinfo_rttvar", |r, out| tcp(r, out, |info| info.rttvar)),
    ("tcpinfo_snd_cwnd", |r, out| tcp(r, out, |info| info.snd_cwnd)),
    ("tcpinfo_rcv_space", |r, out| tcp(r, out, |info| info.rcv_space)),
];

fn port(out: &mut Vec<u8>, port: Option<u16>) -> bool {
    match port.unwrap_or(0) {
        0 => put(out, b""),
        port => number(out, u64::from(port)),
    }
}

fn proxy(r: &Request, read: impl FnOnce(&Header) -> bool) -> bool {
    r.conn.proxy.get().is_some_and(|header| read(header))
}

fn tcp(r: &Request, out: &mut Vec<u8>, field: fn(TcpInfo) -> u32) -> bool {
    match tcp_info(r.conn.stream.socket().as_fd()) {
        Ok(info) => number(out, u64::from(field(info))),
        Err(_) => false,
    }
}
