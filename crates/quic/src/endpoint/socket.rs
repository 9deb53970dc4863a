//! Socket options of an endpoint.

use std::io;
use std::os::fd::AsFd;

use quinn_udp::UdpSocketState;

/// Sets the socket options for UDP_GRO, ECN and the destination address.
///
/// # Errors
///
/// The socket refuses an option that QUIC needs.
pub(super) fn prepare(socket: impl AsFd) -> io::Result<UdpSocketState> {
    let state = UdpSocketState::new((&socket).into())?;
    // quinn-udp turns on receive timestamps, too. With them the control messages do not fit its buffer, and the ECN bits are lost.
    weir_sys::datagram::tell_no_times(socket.as_fd())?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;
    use std::net::UdpSocket;

    use quinn_udp::{EcnCodepoint, RecvMeta, Transmit};

    use super::*;

    #[test]
    fn marks_of_datagrams_that_come_together_are_seen() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let sockets = [(); 2].map(|()| UdpSocket::bind(host).unwrap());
            let [from, to] = [0, 1].map(|n| prepare(&sockets[n]).unwrap());
            let transmit = Transmit {
                destination: sockets[1].local_addr().unwrap(),
                ecn: Some(EcnCodepoint::Ce),
                contents: &[7; 1500],
                segment_size: Some(1000),
                src_ip: None,
            };
            from.try_send((&sockets[0]).into(), &transmit).unwrap();
            let (mut buf, mut meta) = ([0; 4000], [RecvMeta::default()]);
            let mut parts = [IoSliceMut::new(&mut buf)];
            sockets[1].set_nonblocking(false).unwrap();
            to.recv((&sockets[1]).into(), &mut parts, &mut meta).unwrap();
            let [meta] = meta;
            assert_eq!((meta.stride, meta.ecn), (1000, Some(EcnCodepoint::Ce)), "{host}");
            assert!(meta.dst_ip.is_some(), "{host}");
        }
    }
}
