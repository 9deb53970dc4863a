//! Datagrams that no honest client sends.

use std::net::UdpSocket;
use std::time::Duration;

use weir_testkit::{Dir, PATIENCE, Server};

use super::{ask, begin, long, start};

/// How long nothing more may come before no more is expected. Too short a time finds less; it fails nothing.
const SILENCE: Duration = Duration::from_millis(300);

fn socket(server: &Server) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", server.port())).unwrap();
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    socket
}

/// Bytes that come until nothing more comes.
fn answers(socket: &UdpSocket) -> usize {
    let mut buf = [0; 65_536];
    std::iter::from_fn(|| socket.recv(&mut buf).ok()).sum()
}

#[test]
fn datagrams_that_are_no_quic_get_nothing_larger() {
    let server = start("", "return 200 fine;");
    let mut unknown = vec![0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8, 1, 2, 3, 4, 5, 6, 7, 8, 8];
    unknown.resize(1200, 7);
    let mut of_nobody = vec![0x40];
    of_nobody.extend(long(200));
    let mut initial = vec![0xc0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x44, 0x9e];
    initial.resize(1200, 9);
    let short_initial = initial[..300].to_vec();
    for datagram in
        [&b""[..], b"x", &[0x40; 30], &long(1200), &unknown, &of_nobody, &initial, &short_initial]
    {
        let socket = socket(&server);
        socket.send(datagram).unwrap();
        let got = answers(&socket);
        assert!(got <= datagram.len(), "{got} bytes for {}", datagram.len());
    }
    // Whatever the first bytes are.
    let socket = socket(&server);
    let noise = long(40_000);
    for piece in noise.chunks(97) {
        socket.send(piece).unwrap();
    }
    assert!(answers(&socket) <= noise.len());
    let Some(got) = ask(&server, server.port(), &[], &["/said"]) else { return };
    assert_eq!(got.read("said"), "fine");
    assert!(server.logged("[alert]") == 0 && server.logged("panicked") == 0);
}

/// The first datagram of a client, sent by somebody whose address receives and does not answer.
#[test]
fn a_forged_address_gets_at_most_three_times_what_came() {
    let server = start("", "return 200;");
    let middle = UdpSocket::bind("127.0.0.1:0").unwrap();
    middle.set_read_timeout(Some(PATIENCE)).unwrap();
    let (got, port) = (Dir::new(), middle.local_addr().unwrap().port());
    let Some(_client) = begin(port, &["--handshake-timeout=1s"], &["/"], &got) else { return };
    let mut first = [0; 65_536];
    let len = middle.recv(&mut first).unwrap();
    let socket = socket(&server);
    socket.send(&first[..len]).unwrap();
    // Beyond the times at which what is lost is sent again.
    socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let answered = answers(&socket);
    assert!((1..=3 * len).contains(&answered), "{answered} bytes for {len}");
}
