//! A binary upgrade: starts a new program on the same sockets, then ends the old one or the new
//! one.
//!
//! nginx: ngx_exec_new_binary(). USR2 starts the successor, WINCH finishes the old workers, and
//! QUIT ends the old master. HUP brings the old workers back, and QUIT to the successor ends it.

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

/// The suffix of the old master's pid file while a successor runs.
const OLD: &str = ".oldbin";

/// The relation of this master to others.
#[derive(Debug, Default)]
pub(super) struct Kin {
    /// The program that takes over.
    pub(super) successor: Option<Pid>,
    /// The master that started this one after USR2.
    pub(super) predecessor: Option<Pid>,
    /// WINCH has told the workers to finish.
    pub(super) resting: bool,
}

impl Kin {
    /// The relations of a new master. If it inherited sockets, its parent is the predecessor.
    pub(super) fn new(inherited: bool) -> Kin {
        Kin { predecessor: getppid().filter(|_| inherited), ..Kin::default() }
    }

    /// Whether the predecessor still runs.
    fn has_predecessor(&self) -> bool {
        self.predecessor.is_some() && self.predecessor == getppid()
    }

    /// Whether another master uses the same sockets.
    pub(super) fn shares_sockets(&self) -> bool {
        self.successor.is_some() || self.has_predecessor()
    }
}

impl Master {
    /// Whether USR2 has an effect: not while there are two programs.
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

    /// The successor has ended, and this master is alone again.
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

    /// HUP while there is a successor: the workers come back with the same configuration.
    pub(super) fn bring_back(&mut self) -> ControlFlow<Role> {
        if std::mem::take(&mut self.kin.resting) {
            self.renew_load();
            return self.start_workers();
        }
        ControlFlow::Continue(())
    }

    /// Makes a new load table and all that belongs to it. Workers that WINCH has told to finish may
    /// live long. If their successors had the same rows, they would hide each other, and the death
    /// of one would clear the state of the other.
    fn renew_load(&mut self) {
        match self.cycle.renewed() {
            Ok(cycle) => {
                cycle.steer();
                self.cycle = cycle;
            }
            Err(e) => {
                log!(self.cycle.log, Alert, None, "the load table could not be made {}", Cause(&e));
            }
        }
    }

    /// The present path of this master's pid file.
    pub(super) fn own_pid_file(&self) -> Option<PathBuf> {
        let path = self.cycle.config.pid.as_deref()?;
        Some(if self.kin.successor.is_some() { old_path(path) } else { path.to_owned() })
    }

    /// Renames the pid file, so that the successor can use the name.
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
