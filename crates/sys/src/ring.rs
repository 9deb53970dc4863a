//! `io_uring(7)`: requests and completions in memory that is shared with the kernel.
//!
//! Only requests that hand the kernel no memory of the process: what completes them later can do
//! no harm to it, whatever has become of their descriptors.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, cqueue, opcode, types};

/// Requests that are handed over with one system call.
const REQUESTS: u32 = 512;
/// Room for completions, at least and at most: the kernel's own limit is 2^16.
const COMPLETIONS: std::ops::RangeInclusive<u32> = 2048..=1 << 15;
/// The number of requests to cancel. Their own completions mean nothing.
const CANCELS: u64 = u64::MAX;

/// A ring of the thread that made it; the only one that may use it.
pub struct Ring {
    ring: IoUring,
    /// Requests that came when the ring was full and the kernel took none.
    late: VecDeque<Entry>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number that the request was given.
    pub number: u64,
    /// What it reports, or the error's number, negated.
    pub result: i32,
    /// The request goes on, and more will come of it.
    pub more: bool,
}

impl Ring {
    /// A ring with room for about `completions`. An error of the kind `Unsupported` where the kernel has no
    /// io_uring, or one that is too old: the flags are those of Linux 6.0.
    pub fn new(completions: u32) -> io::Result<Ring> {
        let room = completions.clamp(*COMPLETIONS.start(), *COMPLETIONS.end());
        let mut builder = IoUring::builder();
        // Completions wait until the thread is in the kernel anyway, instead of interrupting it.
        builder.setup_coop_taskrun().setup_single_issuer().setup_submit_all().setup_cqsize(room);
        let ring = builder.build(REQUESTS).map_err(|e| match e.raw_os_error() {
            Some(libc::EINVAL) => too_old(),
            _ => e,
        })?;
        // Without it the kernel drops completions that find no room.
        if !ring.params().is_feature_nodrop() {
            return Err(too_old());
        }
        Ok(Ring { ring, late: VecDeque::new() })
    }

    /// Asks to be told under `number` of each change that makes `fd` ready for `events` (the bits of
    /// poll(2); errors and hang-ups always), beginning with what it is ready for now. The kernel holds the open
    /// file until [`Ring::forget`] has been submitted: closing the descriptor does not close it.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, events: u32, number: u64) {
        let poll = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), events).multi(true);
        self.push(poll.build().user_data(number));
    }

    /// Ends what has this number; its last completion still comes.
    pub fn forget(&mut self, number: u64) {
        let cancel = opcode::AsyncCancel::new(number).build().user_data(CANCELS);
        self.push(cancel.flags(Flags::SKIP_SUCCESS));
    }

    /// Hands all requests to the kernel; false if it cannot take them yet. No system call if there
    /// are none.
    pub fn submit(&mut self) -> io::Result<bool> {
        loop {
            let mut queue = self.ring.submission();
            while let Some(entry) = self.late.pop_front() {
                // SAFETY: as in `push`.
                if unsafe { queue.push(&entry) }.is_err() {
                    self.late.push_front(entry);
                    break;
                }
            }
            if queue.is_empty() && !queue.cq_overflow() {
                return Ok(true);
            }
            drop(queue);
            match self.ring.submit() {
                Ok(_) if self.late.is_empty() => return Ok(true),
                Ok(_) => {}
                Err(e) => match e.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => return Ok(false),
                    _ => return Err(e),
                },
            }
        }
    }

    /// Whether completions are there.
    pub fn is_ready(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Takes the completions that are there, at most `most`.
    pub fn completions(&mut self, most: usize) -> impl Iterator<Item = Completion> {
        let all = self.ring.completion().take(most).map(|entry| Completion {
            number: entry.user_data(),
            result: entry.result(),
            more: cqueue::more(entry.flags()),
        });
        all.filter(|completion| completion.number != CANCELS)
    }

    fn push(&mut self, entry: Entry) {
        if self.late.is_empty() {
            if self.ring.submission().is_full() {
                // What it cannot take now, it is offered again.
                let _ = self.submit();
            }
            // SAFETY: the requests of this module hold no pointers, so nothing has to outlive them;
            // the kernel checks their descriptors.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.late.push_back(entry);
    }
}

/// Readable while completions are there.
impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor and lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

fn too_old() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the kernel's io_uring is older than Linux 6.0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    const IN: u32 = libc::POLLIN as u32;

    fn all(ring: &mut Ring) -> Vec<(u64, i32, bool)> {
        assert!(ring.submit().unwrap());
        ring.completions(usize::MAX).map(|c| (c.number, c.result, c.more)).collect()
    }

    #[test]
    fn each_arrival_is_told_until_it_is_forgotten() {
        let Ok(mut ring) = Ring::new(1) else { return };
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        ring.watch(ours.as_fd(), IN, 7);
        assert_eq!(all(&mut ring), []);
        for _ in 0..3 {
            theirs.write_all(b"x").unwrap();
            assert!(ring.is_ready());
            assert_eq!(all(&mut ring), [(7, IN as i32, true)]);
            assert_eq!(all(&mut ring), [], "told once");
        }
        ours.read_exact(&mut [0; 3]).unwrap();
        ring.forget(7);
        assert_eq!(all(&mut ring), [(7, -libc::ECANCELED, false)]);
        theirs.write_all(b"x").unwrap();
        assert_eq!(all(&mut ring), []);
        ring.forget(7);
        assert_eq!(all(&mut ring), [], "who is not there need not be forgotten");
    }

    #[test]
    fn a_forgotten_socket_closes() {
        let Ok(mut ring) = Ring::new(1) else { return };
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ring.watch(ours.as_fd(), IN, 1);
        assert_eq!(all(&mut ring), []);
        drop(ours);
        ring.forget(1);
        assert_eq!(all(&mut ring).len(), 1);
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn more_requests_and_completions_than_there_is_room_for() {
        let Ok(mut ring) = Ring::new(1) else { return };
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"x").unwrap();
        let many = u64::from(2 * COMPLETIONS.start() + 100);
        for number in 0..many {
            ring.watch(ours.as_fd(), IN, number);
        }
        let mut told = Vec::new();
        for _ in 0..many {
            let some = all(&mut ring);
            told.extend(some.into_iter().map(|(number, _, _)| number));
        }
        told.sort_unstable();
        told.dedup();
        assert_eq!(told.len() as u64, many);
    }
}
