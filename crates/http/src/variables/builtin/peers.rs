//! Variables of the client's connection.

use weir_sys::tcpinfo::TcpInfo;

use crate::request::Request;
use crate::variables::value::{ReadVariable, put_number};

pub const TABLE: &[(&str, ReadVariable)] = &[
    ("connection_requests", |r, out| put_number(out, r.number)),
    ("tcpinfo_rtt", |r, out| match r.conn.quic() {
        Some(quic) => put_number(out, quic.stats().path.rtt.as_micros() as u64),
        None => tcp(r, out, |info| info.rtt),
    }),
    ("tcpinfo_rttvar", |r, out| tcp(r, out, |info| info.rttvar)),
    ("tcpinfo_snd_cwnd", |r, out| match r.conn.quic() {
        Some(quic) => {
            let path = quic.stats().path;
            put_number(out, path.cwnd / u64::from(path.current_mtu.max(1)))
        }
        None => tcp(r, out, |info| info.snd_cwnd),
    }),
    ("tcpinfo_rcv_space", |r, out| tcp(r, out, |info| info.rcv_space)),
];

fn tcp(r: &Request, out: &mut Vec<u8>, field: fn(TcpInfo) -> u32) -> bool {
    match r.conn.tcp_info() {
        Ok(info) => put_number(out, u64::from(field(info))),
        Err(_) => false,
    }
}
