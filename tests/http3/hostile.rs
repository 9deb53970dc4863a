//! Datagrams that no honest client sends.

use std::net::UdpSocket;
use std::time::Duration;

use weir_testkit::{Dir, PATIENCE, Server, certified};

use super::{WEIR, ask, begin, conf, long, start};

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

/// A datagram of a connection that is unknown is answered by a token for its id.
#[test]
fn servers_of_one_host_key_reset_connections_of_each_other() {
    let start = |byte: u8| {
        let dir = certified();
        dir.write("key", [byte; 64]);
        Server::start_in(dir, WEIR, &conf("quic_host_key key;", "return 200;"))
    };
    let (one, same, other) = (start(1), start(1), start(2));
    let Some(first) = first_datagram(&Dir::new()) else { return };
    let (socket, mut buf) = (socket(&one), [0; 65_536]);
    socket.send(&first).unwrap();
    socket.recv(&mut buf).unwrap();
    // The client's id and the server's, each behind its length (RFC 9000, section 17.2).
    let at = 6 + usize::from(buf[5]);
    let id = &buf[at + 1..][..usize::from(buf[at])];
    let datagram = [&[0x40], id, &long(200)].concat();
    let reset = |server: &Server| {
        let socket = self::socket(server);
        socket.send(&datagram).unwrap();
        answers(&socket)
    };
    assert!((21..=datagram.len()).contains(&reset(&same)));
    assert_eq!(reset(&other), 0);
}

/// What a client sends first, with nothing else from it.
fn first_datagram(got: &Dir) -> Option<Vec<u8>> {
    let middle = UdpSocket::bind("127.0.0.1:0").unwrap();
    middle.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = middle.local_addr().unwrap().port();
    let _client = begin(port, &["--handshake-timeout=1s"], &["/"], got)?;
    let mut first = vec![0; 65_536];
    let len = middle.recv(&mut first).unwrap();
    first.truncate(len);
    Some(first)
}

/// The first datagram of a client, from an address that receives and does not answer.
#[test]
fn a_forged_address_gets_at_most_three_times_what_came() {
    let server = start("", "return 200;");
    let Some(first) = first_datagram(&Dir::new()) else { return };
    let socket = socket(&server);
    socket.send(&first).unwrap();
    // Beyond the times at which what is lost is sent again.
    socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let answered = answers(&socket);
    assert!((1..=3 * first.len()).contains(&answered), "{answered} bytes for {}", first.len());
}
