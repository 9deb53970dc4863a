//! The load of a worker: the length of its accept queue and its CPU time. proc(5), tcp(7).

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use weir_sys::tcpinfo::accept_queue;

use crate::shares::WorkerSample;
use weir_inspect::servers::{ListeningSocket, thread_times};

/// About how long a measurement of CPU time lasts.
const WINDOW: Duration = Duration::from_millis(200);

/// One socket of a group, and the process that serves it.
#[derive(Debug)]
pub(crate) struct Member {
    pub socket: OwnedFd,
    pub inode: u64,
    pub pids: Vec<i32>,
    /// When the CPU time was last read, and the result.
    asked: Option<(Instant, Duration)>,
    busy: f64,
}

impl Member {
    /// Duplicates the server's socket into this process.
    pub(crate) fn of(socket: &ListeningSocket) -> std::io::Result<Member> {
        let pids = socket.workers.iter().map(|worker| worker.pid).collect();
        Ok(Member { socket: socket.borrow()?, inode: socket.inode, pids, asked: None, busy: 0.0 })
    }

    /// Takes a sample. `given` is the number of connections that the worker has been assigned.
    pub(crate) fn sample(&mut self, now: Instant, given: u64) -> WorkerSample {
        let waiting = accept_queue(self.socket.as_fd()).map_or(0, |(waiting, _)| waiting);
        let due = self.asked.is_none_or(|(then, _)| now.duration_since(then) >= WINDOW);
        if due {
            let ran =
                self.pids.iter().flat_map(|pid| thread_times(*pid).into_values()).sum::<Duration>();
            if let Some((then, before)) = self.asked {
                let over = now.duration_since(then).as_secs_f64();
                self.busy = ran.saturating_sub(before).as_secs_f64() / over;
            }
            self.asked = Some((now, ran));
        }
        WorkerSample { waiting, given, busy: self.busy }
    }
}
