//! A SO_REUSEPORT group of sockets at one address, which is watched and steered.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

use weir_sys::sockopt::unsteer;
use weir_sys::steering::{PLACES, Steering};

use crate::load::Member;
use crate::shares::{Judge, WorkerSample, places};
use crate::watch::WorkerWatch;
use weir_inspect::servers::ListeningServer;

/// How long the kernel follows a table that is not renewed. Then its hash decides again.
const EXPIRY: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(10);
const BUSY: i32 = rustix::io::Errno::BUSY.raw_os_error();

/// A group of sockets, which is steered while this value lives.
pub(crate) struct SteeredGroup {
    address: std::net::SocketAddr,
    members: Vec<Member>,
    names: Vec<String>,
    judge: Judge,
    last: Instant,
    steering: Option<(Steering, UnixListener)>,
    watch: WorkerWatch,
}

impl SteeredGroup {
    /// Makes a group of the sockets at an address with several queues.
    pub(crate) fn of(listening: &ListeningServer) -> io::Result<SteeredGroup> {
        let members: Vec<Member> =
            listening.sockets.iter().map(Member::of).collect::<io::Result<_>>()?;
        let name = |socket: &weir_inspect::servers::ListeningSocket| match &socket.workers[..] {
            [one] => format!("{} {}", one.name, one.pid),
            all => format!("{} of {}", all.len(), all.first().map_or("none", |p| &p.name)),
        };
        let watch = WorkerWatch::new(members.len());
        Ok(SteeredGroup {
            address: listening.address,
            names: listening.sockets.iter().map(name).collect(),
            judge: Judge::default(),
            last: Instant::now(),
            steering: None,
            watch,
            members,
        })
    }

    /// Whether the group still has the sockets and workers of `listening`.
    pub(crate) fn is(&self, listening: &ListeningServer) -> bool {
        let found = listening.sockets.iter().map(|socket| {
            (socket.inode, socket.workers.iter().map(|worker| worker.pid).collect::<Vec<_>>())
        });
        self.address == listening.address
            && found.eq(self.members.iter().map(|member| (member.inode, member.pids.clone())))
    }

    /// Makes the kernel follow the shares from now on.
    pub(crate) fn steer(&mut self) -> io::Result<()> {
        let Some(first) = self.members.first() else { return Ok(()) };
        // The name of this socket allows only one program to steer the group at a time.
        let name = SocketAddr::from_abstract_name(format!("weir-balance-{}", first.inode))?;
        let only = UnixListener::bind_addr(&name)?;
        let sockets: Vec<_> = self.members.iter().map(|member| member.socket.as_fd()).collect();
        let steering = load(&sockets)?;
        steering.attach(first.socket.as_fd())?;
        self.steering = Some((steering, only));
        Ok(())
    }

    /// An empty watch for the group's members.
    pub(crate) fn new_watch(&self) -> WorkerWatch {
        WorkerWatch::new(self.members.len())
    }

    /// Samples all workers and updates their shares.
    pub(crate) fn sample(&mut self, now: Instant, whole: &mut WorkerWatch) {
        let given = |at| self.steering.as_ref().map_or(0, |(steering, _)| steering.given(at));
        let members = self.members.iter_mut().enumerate();
        let seen: Vec<WorkerSample> =
            members.map(|(at, member)| member.sample(now, given(at))).collect();
        let seconds = now.duration_since(self.last).as_secs_f64();
        self.last = now;
        let given = match &self.steering {
            Some((steering, _)) => {
                let shares = self.judge.shares(&seen, seconds);
                steering.hold(places(&shares, PLACES).into_iter(), EXPIRY);
                shares
            }
            None => vec![1.0 / seen.len() as f64; seen.len()],
        };
        self.watch.add(&seen, &given);
        whole.add(&seen, &given);
    }

    /// Formats the figures since the last table.
    pub(crate) fn table(&mut self) -> String {
        let new = self.new_watch();
        let watch = std::mem::replace(&mut self.watch, new);
        format!("{}\n{}", self.address, watch.table(&self.names))
    }
}

/// Loads the eBPF program for these sockets. If an earlier one was left by a killed process, it is
/// removed first. The kernel then releases the sockets some time later.
fn load(sockets: &[BorrowedFd<'_>]) -> io::Result<Steering> {
    let end = Instant::now() + EXPIRY;
    loop {
        match Steering::new(sockets) {
            Err(e) if e.raw_os_error() == Some(BUSY) && Instant::now() < end => {
                sockets.first().map_or(Ok(()), |first| unsteer(*first)).or_else(|e| {
                    // No program is attached any more, but the kernel has not released the rest
                    // yet.
                    if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) }
                })?;
                sleep(RETRY);
            }
            other => return other,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "no loop runs here")]
fn sleep(time: Duration) {
    std::thread::sleep(time);
}

impl Drop for SteeredGroup {
    fn drop(&mut self) {
        if self.steering.is_some()
            && let Some(member) = self.members.first()
        {
            // If this fails, the table expires by itself.
            let _ = unsteer(member.socket.as_fd());
        }
    }
}
