//! Sends datagrams, with as few calls as possible.

use std::rc::Rc;

use quinn_proto::Transmit;
use weir_engine::spend;

use super::{DATAGRAM, Endpoint};
use crate::connection::Connection;

/// The most bytes of a send call with UDP_SEGMENT: the largest payload of a UDP datagram over IPv4 (RFC 768).
const CALL: usize = 65_507;
/// The most datagrams without a connection that wait for a full send buffer. More are dropped.
const MOST_WAITING: usize = 64;

impl Endpoint {
    /// Sends the datagrams of a connection. False if others wait for the socket.
    pub(super) fn transmit(&self, connection: &Rc<Connection>) -> bool {
        let mut out = self.scratch.take();
        let done = loop {
            if !self.waiting.borrow().is_empty() {
                break false;
            }
            out.clear();
            let now = self.now();
            let fit = CALL / connection.mtu();
            let most = self.udp.max_gso_segments().min(fit).max(1);
            let transmit = connection.poll_transmit(now, most, &mut out);
            let Some(mut transmit) = transmit else { break true };
            transmit.size = connection.limit_transmit(&transmit);
            if transmit.size > 0 {
                self.send(transmit, &mut out);
            }
            // The streams write more, so that the next call is full, too.
            if connection.resume_paused() {
                self.resumed.borrow_mut().push(connection.clone());
                break true;
            }
        };
        self.scratch.replace(out);
        done
    }

    /// Sends a datagram that belongs to no connection. It is dropped if too many datagrams wait.
    pub(super) fn send_stateless(&self, transmit: Transmit, mut bytes: Vec<u8>) {
        if self.waiting.borrow().len() < MOST_WAITING {
            self.send(transmit, &mut bytes);
        }
    }

    /// Sends a transmit, or queues its bytes if the socket's send buffer is full.
    pub(super) fn send(&self, transmit: Transmit, bytes: &mut Vec<u8>) {
        if !self.try_send(&transmit, bytes) {
            self.waiting.borrow_mut().push_back((transmit, std::mem::take(bytes)));
        }
    }

    /// False if the socket's send buffer is full. After another error the datagrams count as sent: QUIC recovers from the loss.
    pub(super) fn try_send(&self, transmit: &Transmit, bytes: &[u8]) -> bool {
        spend(DATAGRAM);
        let ecn = transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8));
        let message = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn,
            contents: bytes.get(..transmit.size).unwrap_or(bytes),
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        !matches!(self.sender.try_send_by(|fd| self.udp.try_send((&fd).into(), &message)), Ok(None))
    }

    /// Sends the queued datagrams. False if the socket's send buffer is full before all are sent.
    pub(super) fn send_waiting(&self) -> bool {
        loop {
            let Some((transmit, bytes)) = self.waiting.borrow_mut().pop_front() else {
                return true;
            };
            if !self.try_send(&transmit, &bytes) {
                self.waiting.borrow_mut().push_front((transmit, bytes));
                return false;
            }
        }
    }
}
