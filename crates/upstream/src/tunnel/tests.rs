//! How much is read at once, measured over sockets of this process.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use rustix::net::sockopt::set_socket_send_buffer_size;
use weir_engine::{Driver, ListenerKey, Loop, Options, Turn};

use super::*;

/// Takes what has come after each turn, until all is over.
struct Taking(UnixStream, usize);

impl Driver for Taking {
    fn before_wait(&mut self, _: &Handle, _: Instant) -> Option<Duration> {
        Some(weir_testkit::PATIENCE)
    }

    fn acceptable(&mut self, _: &Handle, _: ListenerKey) {}

    fn end_of_turn(&mut self, h: &Handle, _: &Turn) {
        let mut taken = [0; 4096];
        while let Ok(n @ 1..) = self.0.read(&mut taken) {
            self.1 += n;
        }
        if h.tasks() == 0 {
            h.stop();
        }
    }
}

/// The reads that pass so many KiB to a reader with room for so many bytes, which takes them turn
/// by turn.
fn reads(much: usize, room: usize, most: usize) -> Vec<u64> {
    let mut own = Loop::new(&Options::default()).unwrap();
    let h = own.handle();
    let ([mut speaks, heard], [sends, taken]) = (pair(), pair());
    set_socket_send_buffer_size(&speaks, 1 << 20).unwrap();
    set_socket_send_buffer_size(&sends, room).unwrap();
    speaks.write_all(&vec![b'x'; much << 10]).unwrap();
    drop(speaks);
    let wire = |socket| Wire::from(h.stream(OwnedFd::from(socket)).unwrap());
    let (from, to) = (wire(heard), wire(sends));
    let seen: Rc<RefCell<Vec<u64>>> = Rc::default();
    let (seeing, handle) = (seen.clone(), h.clone());
    h.spawn(async move {
        let ways = TunnelOptions { most, ..ways() };
        let active = &Cell::new(handle.now());
        let (read, sent, waits) = (Bytes::default(), Bytes::default(), &Cell::new(false));
        let pauses = &Cell::new(0);
        let may_be_silent = false;
        let way = Direction {
            from: &from,
            to: &to,
            rate: 0,
            patience: None,
            active,
            may_be_silent,
            waits,
            pauses,
        };
        let heard = || seeing.borrow_mut().push(read.get());
        assert!(way.pass(&handle, ways, &read, &sent, heard).await.is_ok());
        seeing.borrow_mut().push(read.get());
        assert_eq!(sent.get(), read.get());
    });
    drop(h);
    let mut taking = Taking(taken, 0);
    own.run(&mut taking).unwrap();
    assert_eq!(taking.1, much << 10);
    let seen = seen.borrow();
    // The last one is the end.
    let reads = seen.windows(2).map(|two| (two[1] - two[0]) >> 10);
    reads.filter(|read| *read > 0).collect()
}

fn pair() -> [UnixStream; 2] {
    let (a, b) = UnixStream::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    [a, b]
}

fn ways() -> TunnelOptions {
    let hour = Duration::from_secs(3600);
    TunnelOptions {
        up_patience: None,
        down_patience: None,
        ..TunnelOptions::plain(hour, hour, hour)
    }
}

#[test]
fn a_reader_that_takes_all_at_once_is_given_more() {
    assert_eq!(reads(176, 1 << 20, MOST), [16, 32, 64, 64]);
    assert_eq!(reads(48, 1 << 20, PIECE), [16, 16, 16], "where the size is said");
}

#[test]
fn little_waits_for_a_slow_reader() {
    assert_eq!(reads(80, 4096, MOST), [16; 5]);
}
