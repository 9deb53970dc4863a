//! UDP sockets at a listener's port, mostly for QUIC. proc(5): `net/udp`.

use serde::Serialize;

use crate::report::{Finding, ListenAddress, Severity};
use crate::servers::{ListeningServer, address, table};

/// The UDP sockets of a port, summed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Datagrams {
    /// The number of sockets.
    pub sockets: usize,
    /// The most bytes that waited in their receive buffers in any sample.
    pub waiting: u64,
    /// Datagrams dropped because a receive buffer was full.
    pub dropped: u64,
}

impl Datagrams {
    /// The sockets of a listener's port in its network namespace. `None` if there are none.
    pub(crate) fn at(listening: &ListeningServer) -> Option<Datagrams> {
        let port = listening.address.port();
        let tables = ["udp", "udp6"].map(|name| table(listening.namespace(), name));
        tables.iter().flatten().fold(None, |all, table| Datagrams::add(all, table, port))
    }

    fn add(all: Option<Datagrams>, table: &str, port: u16) -> Option<Datagrams> {
        table.lines().filter_map(|line| row(line, port)).fold(all, |all, (waiting, dropped)| {
            let all = all.unwrap_or_default();
            Some(Datagrams {
                sockets: all.sockets + 1,
                waiting: all.waiting + waiting,
                dropped: all.dropped + dropped,
            })
        })
    }

    /// The sockets of the port now, with the datagrams dropped since `self`.
    pub(crate) fn later(&self, listening: &ListeningServer, most_waiting: u64) -> Datagrams {
        let now = Datagrams::at(listening).unwrap_or_default();
        Datagrams {
            sockets: now.sockets,
            waiting: now.waiting.max(most_waiting),
            dropped: now.dropped.saturating_sub(self.dropped),
        }
    }

    /// One line of text.
    pub(crate) fn words(&self) -> String {
        let Datagrams { sockets, waiting, dropped } = self;
        let s = if *sockets == 1 { "" } else { "s" };
        format!(
            "UDP (QUIC): {sockets} socket{s}, {waiting} bytes waited, {dropped} datagrams were dropped"
        )
    }
}

/// Parses a socket of this port: the bytes that wait in it, and the datagrams that it dropped.
fn row(line: &str, port: u16) -> Option<(u64, u64)> {
    // sl, local, remote, state, queues, timer, retransmits, user, timeout, inode, references, pointer, drops
    let fields: Vec<&str> = line.split_whitespace().collect();
    let own = address(fields.get(1)?)?;
    let (_, waiting) = fields.get(4)?.split_once(':')?;
    let dropped = fields.get(12)?.parse().ok()?;
    (own.port() == port).then_some((u64::from_str_radix(waiting, 16).ok()?, dropped))
}

/// A socket drops datagrams because its receive buffer is full.
pub(crate) fn dropped(place: &ListenAddress) -> Option<Finding> {
    let datagrams = place.datagrams.as_ref().filter(|datagrams| datagrams.dropped > 0)?;
    Some(Finding {
        severity: Severity::Bad,
        what: format!(
            "{} datagrams were dropped, since a socket of UDP was full",
            datagrams.dropped
        ),
        why: "a loop that does not come to receive leaves them in its socket, and the kernel keeps only so many bytes of them".to_owned(),
        advice: "see which worker has no time left; a larger net.core.rmem_default bears longer pauses".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_of_datagrams_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  257: 0100007F:20FB 00000000:0000 07 00000000:00000300 00:00000000 00000000     0        0 12345 2 0000000000000000 7
  258: 0100007F:20FB 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 12346 2 0000000000000000 2
  259: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 12347 2 0000000000000000 9";
        let expected = Datagrams { sockets: 2, waiting: 768, dropped: 9 };
        assert_eq!(Datagrams::add(None, table, 8443), Some(expected.clone()));
        assert_eq!(Datagrams::add(None, table, 80), None);
        assert_eq!(
            expected.words(),
            "UDP (QUIC): 2 sockets, 768 bytes waited, 9 datagrams were dropped"
        );
    }
}
