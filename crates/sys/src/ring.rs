//! `io_uring(7)`: requests and completions in memory that is shared with the kernel.
//!
//! Only requests without pointers to memory of the process are used. So a late completion can do no
//! harm, whatever has become of its descriptor.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, cqueue, opcode, types};

/// The most requests that one system call submits.
const REQUESTS: u32 = 512;
/// The least and the most entries for completions. The kernel's own limit is 2^16.
const COMPLETIONS: std::ops::RangeInclusive<u32> = 2048..=1 << 15;
/// The user data of cancel requests, whose own completions are ignored.
const CANCELS: u64 = u64::MAX;

/// A ring, which only the thread that made it may use.
pub struct Ring {
    ring: IoUring,
    /// Requests that did not fit, since the ring was full and the kernel took none.
    late: VecDeque<Entry>,
}

/// A completion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The user data of the request.
    pub number: u64,
    /// The result, or a negated error number.
    pub result: i32,
    /// The request continues and will have further completions (IORING_CQE_F_MORE).
    pub more: bool,
}

impl Ring {
    /// A ring with about `completions` entries for completions. Fails with `Unsupported` if the
    /// kernel has no io_uring or is older than Linux 6.0.
    pub fn new(completions: u32) -> io::Result<Ring> {
        let room = completions.clamp(*COMPLETIONS.start(), *COMPLETIONS.end());
        let mut builder = IoUring::builder();
        // The kernel posts completions when the thread enters it anyway, instead of interrupting
        // it.
        builder.setup_coop_taskrun().setup_single_issuer().setup_submit_all().setup_cqsize(room);
        let ring = builder.build(REQUESTS).map_err(|e| match e.raw_os_error() {
            Some(libc::EINVAL) => too_old(),
            _ => e,
        })?;
        // Without this feature the kernel drops completions when the ring is full.
        if !ring.params().is_feature_nodrop() {
            return Err(too_old());
        }
        Ok(Ring { ring, late: VecDeque::new() })
    }

    /// Requests a completion with user data `number` for each change that makes `fd` ready for
    /// `events`, beginning with its present state. The events are the bits of poll(2); errors and
    /// hang-ups are always included. The kernel holds the open file until [`Ring::forget`] was
    /// submitted, so closing the descriptor does not close it.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, events: u32, number: u64) {
        let poll = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), events).multi(true);
        self.push(poll.build().user_data(number));
    }

    /// Cancels the request with this user data. Its last completion still arrives.
    pub fn forget(&mut self, number: u64) {
        let cancel = opcode::AsyncCancel::new(number).build().user_data(CANCELS);
        self.push(cancel.flags(Flags::SKIP_SUCCESS));
    }

    /// Submits all requests to the kernel. False if it cannot take them yet. Makes no system call
    /// if there are none.
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

    /// Whether there are completions.
    pub fn is_ready(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Takes up to `most` completions.
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
                // Requests that are not taken now are submitted again later.
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

/// Readable while there are completions.
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
