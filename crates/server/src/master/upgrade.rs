//! Starting a new program on the same sockets, and getting rid of the old one or of the new one.
//!
//! nginx: ngx_exec_new_binary(). USR2 starts the successor, WINCH finishes the old workers, QUIT
//! ends the old master; HUP brings the old workers back, QUIT to the successor ends it.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, getppid};
use weir_log::{Cause, log};
use weir_sys::guarded;

use super::{Master, Role};
use crate::inherit::{self, VARIABLE};
use crate::listen::upgrade as quic;
use crate::signals;

/// Added to the pid file's name while a successor has that name.
const OLD: &str = ".oldbin";

/// How this master is related to others.
#[derive(Debug, Default)]
pub(super) struct Kin {
    /// The program that took over, or is about to.
    pub(super) successor: Option<Pid>,
    /// The master that started this one by USR2.
    pub(super) predecessor: Option<Pid>,
    /// WINCH has finished the workers.
    pub(super) resting: bool,
}

impl Kin {
    /// The relations of a new master; one that inherited its sockets has a predecessor.
    pub(super) fn new(inherited: bool) -> Kin {
        Kin { predecessor: getppid().filter(|_| inherited), ..Kin::default() }
    }

    /// Whether the predecessor still runs.
    fn has_predecessor(&self) -> bool {
        self.predecessor.is_some() && self.predecessor == getppid()
    }

    /// Whether another master uses the same sockets and their files.
    pub(super) fn shares_sockets(&self) -> bool {
        self.successor.is_some() || self.has_predecessor()
    }
}

impl Master {
    /// Whether USR2 has a meaning now: two programs at a time are enough.
    pub(super) fn may_change_binary(&self) -> bool {
        !self.kin.shares_sockets()
    }

    pub(super) fn change_binary(&mut self) {
        let log = &self.cycle.log;
        if !self.may_change_binary() {
            return signals::refuse_change(log);
        }
        log!(log, Notice, None, "changing binary");
        let Some((program, args)) = self.args.split_first() else { return };
        if let Err(e) = self.step_aside() {
            log!(log, Alert, None, "rename() of the pid file failed {}", Cause(&e));
            return;
        }
        let started = inherit::leave(&self.cycle.sockets, |sockets| {
            self.cycle.post.leave(|quic| {
                let quic = quic.map(|quic| (quic::VARIABLE, quic));
                Command::new(program).args(args).env(VARIABLE, sockets).envs(quic).spawn()
            })
        });
        match started {
            Ok(child) => {
                log!(log, Notice, None, "start new binary process {}", child.id());
                self.kin.successor = Pid::from_raw(child.id() as i32);
                if self.kin.resting {
                    self.finish_workers();
                }
            }
            Err(e) => {
                let program = program.to_string_lossy();
                log!(
                    log,
                    Alert,
                    None,
                    "execve() failed while executing new binary process \"{program}\" {}",
                    Cause(&e)
                );
                self.step_back();
            }
        }
    }

    /// The successor has ended: this master is the only one again.
    pub(super) fn lose_successor(&mut self) {
        self.kin.successor = None;
        self.step_back();
        if self.kin.resting && self.ending.is_none() {
            self.kin.resting = false;
            self.renew_load();
            (0..self.cycle.config.processes)
                .for_each(|index| self.restarts.plan(index, true, std::time::Instant::now()));
        }
    }

    /// HUP while there is a successor: the workers come back with the configuration they had.
    pub(super) fn bring_back(&mut self) -> ControlFlow<Role> {
        if std::mem::take(&mut self.kin.resting) {
            self.renew_load();
            return self.start_workers();
        }
        ControlFlow::Continue(())
    }

    /// Workers that WINCH has told to finish may live for long. Those that come after them have rows, bells, lines
    /// and places of QUIC of their own: in one row two would hide each other, and the death of one would clear what the other
    /// said.
    fn renew_load(&mut self) {
        match self.cycle.renewed() {
            Ok(cycle) => {
                cycle.load.steer(&cycle.sockets, &cycle.log);
                self.cycle = cycle;
            }
            Err(e) => {
                log!(self.cycle.log, Alert, None, "the load table could not be made {}", Cause(&e));
            }
        }
    }

    /// The pid file that is this master's now.
    pub(super) fn own_pid_file(&self) -> Option<PathBuf> {
        let path = self.cycle.config.pid.as_deref()?;
        Some(if self.kin.successor.is_some() { old_path(path) } else { path.to_owned() })
    }

    /// Leaves the pid file's name to the successor.
    fn step_aside(&self) -> std::io::Result<()> {
        match &self.cycle.config.pid {
            Some(path) => guarded::rename(path, &old_name(name(path))),
            None => Ok(()),
        }
    }

    fn step_back(&self) {
        let Some(path) = &self.cycle.config.pid else { return };
        if let Err(e) = guarded::rename(&old_path(path), name(path)) {
            log!(
                self.cycle.log,
                Alert,
                None,
                "rename() {} back to {} failed {}",
                old_path(path).display(),
                path.display(),
                Cause(&e)
            );
        }
    }
}

fn old_path(path: &Path) -> PathBuf {
    old_name(path.as_os_str()).into()
}

fn old_name(name: &OsStr) -> OsString {
    let mut name = name.to_owned();
    name.push(OLD);
    name
}

fn name(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}
