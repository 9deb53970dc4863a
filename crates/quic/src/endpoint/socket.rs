//! Socket options of an endpoint, and its receive call.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use quinn_udp::{RecvMeta, UdpSocketState};
use weir_sys::datagram;

/// Sets the socket options for UDP_GRO, ECN and the destination address.
///
/// # Errors
///
/// The socket refuses an option that QUIC needs.
pub(super) fn prepare(socket: impl AsFd) -> io::Result<UdpSocketState> {
    let state = UdpSocketState::new((&socket).into())?;
    // quinn-udp turns on receive timestamps, too. With them the control messages do not fit its buffer, and the ECN bits are lost.
    datagram::tell_no_times(socket.as_fd())?;
    if !datagram::receives_many() {
        // An old kernel has no batches.
        let _ = datagram::take_no_batches(socket.as_fd());
    }
    Ok(state)
}

/// Receives batches of datagrams without waiting. Returns how many.
pub(super) fn receive(
    state: &UdpSocketState,
    socket: BorrowedFd<'_>,
    parts: &mut [IoSliceMut<'_>],
    metas: &mut [RecvMeta],
) -> io::Result<usize> {
    if datagram::receives_many() {
        return state.recv((&socket).into(), parts, metas);
    }
    match (parts, metas) {
        ([part, ..], [meta, ..]) => {
            *meta = receive_one(socket, part)?;
            Ok(1)
        }
        _ => Ok(0),
    }
}

/// Receives one datagram, without its ECN mark.
fn receive_one(socket: BorrowedFd<'_>, part: &mut [u8]) -> io::Result<RecvMeta> {
    let mut buf = Vec::with_capacity(part.len());
    let received = datagram::receive(socket, &mut buf)?;
    let len = buf.len().min(part.len());
    if let (Some(part), Some(bytes)) = (part.get_mut(..len), buf.get(..len)) {
        part.copy_from_slice(bytes);
    }
    let from = received.from.and_then(|from| SocketAddr::try_from(from).ok());
    let mut meta = RecvMeta::default();
    meta.addr = from.ok_or(io::ErrorKind::InvalidData)?;
    (meta.len, meta.stride) = (len, len);
    meta.dst_ip = received.to;
    Ok(meta)
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
