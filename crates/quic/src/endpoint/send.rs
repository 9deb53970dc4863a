//! Datagrams that go, with as few calls as possible.

use std::rc::Rc;

use quinn_proto::Transmit;
use weir_engine::spend;

use super::{DATAGRAM, Endpoint};
use crate::connection::Connection;

/// So many bytes go with one call: what fits a datagram of IPv4, whatever it is cut into. RFC 768.
const CALL: usize = 65_507;
/// So many datagrams wait for room in the socket before connections have to.
const MOST_WAITING: usize = 64;

impl Endpoint {
    pub(super) fn transmit(&self, connection: &Rc<Connection>) -> bool {
        let mut out = self.scratch.take();
        let done = loop {
            if !self.waiting.borrow().is_empty() {
                break false;
            }
            out.clear();
            let now = self.now();
            let fit = CALL / connection.longest();
            let most = self.udp.max_gso_segments().min(fit).max(1);
            let transmit = connection.poll_transmit(now, most, &mut out);
            let Some(mut transmit) = transmit else { break true };
            transmit.size = connection.sends(&transmit);
            if transmit.size > 0 {
                self.send(transmit, &mut out);
            }
            // What is left is less than a call takes: it goes with what streams write now.
            if connection.go_on() {
                self.later.borrow_mut().push(connection.clone());
                break true;
            }
        };
        self.scratch.replace(out);
        done
    }

    /// Sends an answer that belongs to no connection; it is lost if the socket is full.
    pub(super) fn say(&self, transmit: Transmit, mut bytes: Vec<u8>) {
        if self.waiting.borrow().len() < MOST_WAITING {
            self.send(transmit, &mut bytes);
        }
    }

    /// Sends it, or takes its bytes to be sent as soon as there is room.
    pub(super) fn send(&self, transmit: Transmit, bytes: &mut Vec<u8>) {
        if !self.try_send(&transmit, bytes) {
            self.waiting.borrow_mut().push_back((transmit, std::mem::take(bytes)));
        }
    }

    /// False if the socket is full. What cannot be sent at all is lost: the protocol repeats it.
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

    /// False if the socket is still full.
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
