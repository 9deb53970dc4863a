//! `ngx.pipe`: child processes of scripts, and their standard streams.
//!
//! A process is killed when the script's object is collected, or when the loop's thread ends. A
//! task of the loop reaps it, whether or not a script waits for it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, test_kill_process};
use weir_engine::{Datagram, Either, Handle, either};

use super::socket::{Pattern, Searched, SocketError};

/// The default timeout.
const USUAL: Duration = Duration::from_secs(10);
/// No timeout.
const ENDLESS: Duration = Duration::from_secs(u32::MAX as u64);

/// The process ids of a loop's scripts' processes that have not ended.
pub type Running = Rc<RefCell<BTreeSet<i32>>>;

/// Why an operation failed.
#[derive(Debug, PartialEq, Eq)]
pub enum PipeError {
    /// The timeout passed.
    Timeout,
    /// The stream is closed.
    Closed,
    /// The stream was shut down during the operation.
    Aborted,
    /// The process has ended, and a script has got its status.
    Exited,
    /// Another coroutine is in the same operation.
    Busy(&'static str),
    /// There is no such signal.
    NoSignal,
    /// The error stream is merged into the output.
    Merged,
    /// The kernel's error.
    Kernel(SocketError),
}

impl std::fmt::Display for PipeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PipeError::Timeout => f.write_str("timeout"),
            PipeError::Closed => f.write_str("closed"),
            PipeError::Aborted => f.write_str("aborted"),
            PipeError::Exited => f.write_str("exited"),
            PipeError::Busy(doing) => write!(f, "pipe busy {doing}"),
            PipeError::NoSignal => f.write_str("invalid signal"),
            PipeError::Merged => f.write_str("merged to stdout"),
            PipeError::Kernel(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for PipeError {
    fn from(error: io::Error) -> PipeError {
        match error.kind() {
            ErrorKind::BrokenPipe => PipeError::Closed,
            _ => PipeError::Kernel(error.into()),
        }
    }
}

/// The result of a read: the bytes, or the error with the bytes that came before it.
pub type Read = Result<Vec<u8>, (PipeError, Vec<u8>)>;

/// The options of a new process.
pub struct ProcessOptions {
    /// The program and its arguments.
    pub command: Command,
    /// Whether the error stream is merged into the output.
    pub merged: bool,
    /// The buffer size of a read.
    pub room: usize,
}

/// A process of a script.
pub struct Process {
    /// `None` if the program did not start.
    pid: Option<Pid>,
    end: Rc<End>,
    /// Its standard input.
    pub stdin: PipeEnd,
    /// Its standard output.
    pub stdout: PipeEnd,
    /// Its error stream, unless it is merged into the output.
    pub stderr: Option<PipeEnd>,
    /// The timeout of a wait for its end.
    pub limit: Cell<Duration>,
}

/// The end of a process.
#[derive(Default)]
struct End {
    status: Cell<Option<ExitStatus>>,
    /// Whether a script has got the status.
    is_collected: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
    is_awaited: Cell<bool>,
}

/// The server's end of a stream.
pub struct PipeEnd {
    pipe: RefCell<Option<Rc<Datagram>>>,
    unread: RefCell<Vec<u8>>,
    room: usize,
    is_busy: Cell<bool>,
    /// The waker of the coroutine that uses the stream.
    waker: RefCell<Option<Waker>>,
    limit: Cell<Duration>,
}

impl Process {
    /// Starts a process. If the program cannot be run, the process has ended already, and the error
    /// is returned with it.
    ///
    /// # Errors
    ///
    /// The system lacks resources for the process.
    pub fn start(
        handle: &Handle,
        running: &Running,
        begin: ProcessOptions,
    ) -> io::Result<(Process, Option<io::Error>)> {
        let ProcessOptions { mut command, merged, room } = begin;
        let ([child_in, own_in], [own_out, child_out]) = (pipe()?, pipe()?);
        let (own_err, child_err) = match merged {
            true => (None, child_out.try_clone()?),
            false => {
                let [own, child] = pipe()?;
                (Some(own), child)
            }
        };
        command.stdin(Stdio::from(child_in));
        command.stdout(Stdio::from(child_out)).stderr(Stdio::from(child_err));
        weir_sys::process::with_clean_signals(&mut command);
        let end = |fd| PipeEnd::new(handle, fd, room);
        // Registered before the spawn: if this failed later, nothing would reap the process.
        let (stdin, stdout) = (end(own_in)?, end(own_out)?);
        let stderr = own_err.map(end).transpose()?;
        let child = command.spawn();
        // Closes the child's ends of the pipes in this process.
        drop(command);
        let known = Rc::new(End::default());
        let (end, limit) = (known.clone(), Cell::new(USUAL));
        let mut process = Process { pid: None, end, stdin, stdout, stderr, limit };
        let child = match child {
            Ok(child) => child,
            Err(error) if is_lack(&error) => return Err(error),
            Err(error) => {
                known.status.set(Some(unstarted()));
                return Ok((process, Some(error)));
            }
        };
        process.pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let mut reaper = Reaper { child, end: known, running: running.clone() };
        running.borrow_mut().extend(process.pid());
        let watched = process.pid.ok_or(Errno::SRCH);
        let watched = watched.and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK));
        match watched.map_err(io::Error::from).and_then(|fd| handle.datagram(fd)) {
            Ok(watched) => handle.spawn(async move { reaper.run(&watched).await }),
            Err(error) => {
                let _ = reaper.child.kill();
                let _ = reaper.child.wait();
                reaper.ended(unstarted());
                return Err(error);
            }
        }
        Ok((process, None))
    }

    /// The process id.
    pub fn pid(&self) -> Option<i32> {
        self.pid.map(|pid| pid.as_raw_nonzero().get())
    }

    /// Waits for the end of the process.
    pub async fn wait(&self, handle: &Handle) -> Result<ExitStatus, PipeError> {
        let end = &self.end;
        if end.is_collected.get() {
            return Err(PipeError::Exited);
        }
        let _busy = Busy::new(&end.is_awaited, "waiting")?;
        let ended = poll_fn(|cx| match end.status.get() {
            Some(status) => Poll::Ready(status),
            None => {
                end.waiter.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        });
        match either(ended, handle.sleep(self.limit.get())).await {
            Either::Left(status) => {
                end.is_collected.set(true);
                Ok(status)
            }
            Either::Right(()) => Err(PipeError::Timeout),
        }
    }

    /// Sends a signal.
    pub fn kill(&self, number: i32) -> Result<(), PipeError> {
        let (Some(pid), None) = (self.pid, self.end.status.get()) else {
            return Err(PipeError::Exited);
        };
        let sent = match (number, Signal::from_named_raw(number)) {
            (0, _) => test_kill_process(pid),
            (_, Some(signal)) => kill_process(pid, signal),
            (_, None) => return Err(PipeError::NoSignal),
        };
        sent.map_err(|error| match error {
            Errno::SRCH => PipeError::Exited,
            Errno::INVAL => PipeError::NoSignal,
            error => io::Error::from(error).into(),
        })
    }

    /// Shuts a stream down. A coroutine that uses it gets an error.
    pub fn shut(&self, end: Option<&PipeEnd>) -> Result<(), PipeError> {
        let end = end.ok_or(PipeError::Merged)?;
        if self.end.is_collected.get() {
            return Err(PipeError::Closed);
        }
        end.close();
        end.unread.take();
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let (Some(pid), None) = (self.pid, self.end.status.get()) {
            // The id cannot belong to another process before this one is reaped.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Whether resources are lacking, rather than the program.
fn is_lack(error: &io::Error) -> bool {
    use ErrorKind::{InvalidInput, OutOfMemory, WouldBlock};
    matches!(error.kind(), InvalidInput | OutOfMemory | WouldBlock)
}

/// The exit status of a program that could not be started.
fn unstarted() -> ExitStatus {
    ExitStatus::from_raw(1 << 8)
}

/// Waits for a process and reaps it.
struct Reaper {
    child: Child,
    end: Rc<End>,
    running: Running,
}

impl Reaper {
    async fn run(&mut self, watched: &Datagram) {
        loop {
            let child = &mut self.child;
            let looked = watched.try_receive(|_| match child.try_wait() {
                Ok(Some(status)) => Ok(status),
                Ok(None) => Err(ErrorKind::WouldBlock.into()),
                Err(error) => Err(error),
            });
            match looked {
                Ok(Some(status)) => return self.ended(status),
                Ok(None) => {}
                // The process is no child any more: it was reaped elsewhere.
                Err(_) => return self.ended(ExitStatus::from_raw(0)),
            }
            if poll_fn(|cx| watched.poll_readable(cx)).await.is_err() {
                let _ = self.child.kill();
            }
        }
    }

    fn ended(&self, status: ExitStatus) {
        self.end.status.set(Some(status));
        if let Ok(pid) = i32::try_from(self.child.id()) {
            self.running.borrow_mut().remove(&pid);
        }
        self.end.waiter.take().into_iter().for_each(Waker::wake);
    }
}

impl PipeEnd {
    fn new(handle: &Handle, fd: OwnedFd, room: usize) -> io::Result<PipeEnd> {
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        let pipe = RefCell::new(Some(Rc::new(handle.datagram(fd)?)));
        let (unread, is_busy, waker) = Default::default();
        Ok(PipeEnd { pipe, unread, room, is_busy, waker, limit: Cell::new(USUAL) })
    }

    /// Sets the timeout of reads and writes; zero is none.
    pub fn set_limit(&self, limit: Duration) {
        self.limit.set(or_endless(limit));
    }

    fn close(&self) {
        self.pipe.take();
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Runs an operation until it is done, the stream is shut down, or the timeout passes.
    async fn within<T>(
        &self,
        handle: &Handle,
        work: impl Future<Output = io::Result<T>>,
    ) -> Result<T, PipeError> {
        let shut = poll_fn(|cx| {
            if self.pipe.borrow().is_none() {
                return Poll::Ready(());
            }
            self.waker.replace(Some(cx.waker().clone()));
            Poll::Pending
        });
        match either(either(work, shut), handle.sleep(self.limit.get())).await {
            Either::Left(Either::Left(done)) => Ok(done?),
            Either::Left(Either::Right(())) => Err(PipeError::Aborted),
            Either::Right(()) => Err(PipeError::Timeout),
        }
    }

    /// Writes all bytes.
    pub async fn write(&self, handle: &Handle, bytes: &[u8]) -> Result<(), PipeError> {
        let _busy = Busy::new(&self.is_busy, "writing")?;
        let pipe = self.pipe.borrow().clone().ok_or(PipeError::Closed)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let writing = async {
                loop {
                    let sent = pipe.try_send_by(|fd| Ok(rustix::io::write(fd, rest)?))?;
                    match sent {
                        Some(n) => return Ok(n),
                        None => poll_fn(|cx| pipe.poll_writable(cx)).await?,
                    }
                }
            };
            let sent = self.within(handle, writing).await;
            if sent == Err(PipeError::Closed) {
                self.close();
            }
            rest = rest.get(sent?..).unwrap_or_default();
        }
        Ok(())
    }

    /// Reads what the pattern asks for.
    pub async fn read(&self, handle: &Handle, pattern: &Pattern) -> Read {
        let _busy = Busy::new(&self.is_busy, "reading").map_err(|busy| (busy, Vec::new()))?;
        let mut searched = Searched::default();
        loop {
            let found = pattern.take(&mut self.unread.borrow_mut(), &mut searched);
            if let Some((found, _)) = found {
                return Ok(found);
            }
            let Some(pipe) = self.pipe.borrow().clone() else {
                return match (pattern, self.unread.take()) {
                    (Pattern::All, rest) if !rest.is_empty() => Ok(rest),
                    (_, rest) => Err((PipeError::Closed, rest)),
                };
            };
            match self.within(handle, receive(&pipe, self.room)).await {
                Ok(bytes) if bytes.is_empty() => {
                    self.close();
                    return match (pattern, self.unread.take()) {
                        (Pattern::All, rest) => Ok(rest),
                        (_, rest) => Err((PipeError::Closed, rest)),
                    };
                }
                Ok(bytes) => self.unread.borrow_mut().extend_from_slice(&bytes),
                Err(failed) => return Err((failed, self.unread.take())),
            }
        }
    }
}

/// The next bytes of the process; empty at the end.
async fn receive(pipe: &Datagram, room: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(room.max(1));
    loop {
        let read =
            pipe.try_receive(|fd| Ok(rustix::io::read(fd.as_fd(), spare_capacity(&mut bytes))?))?;
        match read {
            Some(_) => return Ok(bytes),
            None => poll_fn(|cx| pipe.poll_readable(cx)).await?,
        }
    }
}

/// A timeout, in which zero means none.
pub fn or_endless(limit: Duration) -> Duration {
    if limit.is_zero() { ENDLESS } else { limit }
}

/// A pipe that other processes do not inherit: its reading and its writing end.
fn pipe() -> io::Result<[OwnedFd; 2]> {
    let (reads, writes) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok([reads, writes])
}

/// Marks a stream as used by a coroutine.
struct Busy<'a>(&'a Cell<bool>);

impl<'a> Busy<'a> {
    fn new(is_busy: &'a Cell<bool>, doing: &'static str) -> Result<Busy<'a>, PipeError> {
        if is_busy.replace(true) {
            return Err(PipeError::Busy(doing));
        }
        Ok(Busy(is_busy))
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
