//! Finds the process that holds a port: proc(5), as far as this process may see.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use weir_values::Address;

/// The process that holds an address, as the end of a message. Empty if none is found.
pub fn held_by(address: &Address, udp: bool) -> String {
    let Address::Inet(wanted) = address else { return String::new() };
    let sockets = sockets(wanted, udp);
    if sockets.is_empty() {
        return String::new();
    }
    // Any process that shares the socket will do. The first one usually is the parent.
    match processes().find_map(|pid| holds(pid, &sockets).then(|| name(pid))) {
        Some(holder) => format!(", held by {holder}"),
        None => ", held by a process that this user may not look into".to_owned(),
    }
}

/// The inodes of the sockets that conflict with this address.
fn sockets(wanted: &SocketAddr, udp: bool) -> BTreeSet<u64> {
    let names = if udp { ["udp", "udp6"] } else { ["tcp", "tcp6"] };
    let tables = names.map(|name| fs::read_to_string(format!("/proc/self/net/{name}")));
    let lines = tables.iter().flatten().flat_map(|table| table.lines());
    lines.filter_map(|line| row(line, wanted, udp)).collect()
}

/// A line such as `0: 0100007F:1F90 00000000:0000 0A ... inode`. A listening socket has state 0A,
/// or 07 with UDP.
fn row(line: &str, wanted: &SocketAddr, udp: bool) -> Option<u64> {
    let mut fields = line.split_whitespace().skip(1);
    let (ip, port) = fields.next()?.split_once(':')?;
    let state = fields.nth(1)?;
    let own = u16::from_str_radix(port, 16).ok()?;
    let meets = any(ip) || wanted.ip().is_unspecified() || ip == hex(wanted.ip());
    let listens = state == if udp { "07" } else { "0A" };
    if own != wanted.port() || !listens || !meets {
        return None;
    }
    fields.nth(5)?.parse().ok()
}

fn any(ip: &str) -> bool {
    ip.bytes().all(|digit| digit == b'0')
}

/// An address as in these tables: words in the machine's byte order.
fn hex(ip: IpAddr) -> String {
    let bytes = match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let word = |four: &[u8]| four.try_into().map_or(0, u32::from_ne_bytes);
    bytes.chunks(4).map(|four| format!("{:08X}", word(four))).collect()
}

fn processes() -> impl Iterator<Item = i32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids: BTreeSet<i32> =
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.into_iter()
}

fn holds(pid: i32, sockets: &BTreeSet<u64>) -> bool {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let number = |link: std::path::PathBuf| -> Option<u64> {
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    let mut links = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
    links.any(|link| number(link).is_some_and(|number| sockets.contains(&number)))
}

fn name(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("\"{}\", process {pid}", name.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listening_process_is_found() {
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        let said = format!(", held by \"{}\", process {}", name.trim(), std::process::id());
        let v4 = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = v4.local_addr().unwrap().port();
        assert_eq!(held_by(&Address::Inet(v4.local_addr().unwrap()), false), said);
        assert_eq!(held_by(&Address::Inet(([0, 0, 0, 0], port).into()), false), said);
        assert_eq!(held_by(&Address::Inet(([127, 0, 0, 2], port).into()), false), "");
        assert_eq!(held_by(&Address::Inet(v4.local_addr().unwrap()), true), "");
        let udp = std::net::UdpSocket::bind("[::1]:0").unwrap();
        assert_eq!(held_by(&Address::Inet(udp.local_addr().unwrap()), true), said);
        assert_eq!(held_by(&Address::Unknown, false), "");
    }
}
