//! A power loss: a file that was not yet on disk is truncated, empty or missing. Then the same
//! server starts over the same directory, in this process, which executes itself again.
//!
//! weir never syncs files, since it can fetch cached answers again. After a power loss a cache file
//! may be complete, truncated or missing. File systems that write data before they change a file's
//! length behave so.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_testkit::{Dice, number};

use crate::plan::{ACCEPT_QUEUES, CoursePlan};
use crate::world::World;

const HOME: &str = "WEIR_HOME";
const DATE: &str = "WEIR_DATE";
const TRACE: &str = "WEIR_TRACE_BEFORE";

/// Data of the course before the power loss.
pub struct Before {
    pub home: PathBuf,
    pub date: i64,
    pub trace: u64,
}

/// The data of the course before the power loss, if there was one.
pub fn before() -> Option<Before> {
    let home = PathBuf::from(std::env::var_os(HOME)?);
    Some(Before { home, date: number(DATE)? as i64, trace: number(TRACE)? })
}

/// The power loss: this process executes itself again over the same directory.
pub fn power_loss(home: &Path, world: &World, plan: &CoursePlan) {
    let mut dice = Dice::salted(plan.seed, "disk");
    for file in files_under(&home.join("cache")) {
        lose(&file, &mut dice);
    }
    // Sockets and temporary files are removed, as when a system boots.
    let accept_queues = (0..ACCEPT_QUEUES).map(|accept_queue| format!("u{accept_queue}"));
    for name in ["s".to_owned(), "pid".to_owned()].into_iter().chain(accept_queues) {
        let _ = std::fs::remove_file(home.join(name));
    }
    for accept_queue in 1..plan.loops {
        let _ = std::fs::remove_file(home.join(format!("s.{accept_queue}")));
    }
    for name in ["body", "proxy"] {
        let _ = std::fs::remove_dir_all(home.join(name));
    }
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    let downtime = dice.pick(&[0, 2, 100]);
    command.env(HOME, home).env(DATE, (world.date() + downtime).to_string());
    let error = command.env(TRACE, world.trace().to_string()).exec();
    panic!("cannot begin again: {error}");
}

/// Removes the part of a file that did not reach the disk.
fn lose(file: &Path, dice: &mut Dice) {
    let len = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
    let keep = match dice.below(6) {
        0 => 0,
        1 => dice.below(len as usize + 1) as u64,
        2 => dice.below(len as usize + 1) as u64 / 4096 * 4096,
        3 => {
            let _ = std::fs::remove_file(file);
            return;
        }
        _ => return,
    };
    if let Ok(file) = std::fs::OpenOptions::new().write(true).open(file) {
        let _ = file.set_len(keep);
    }
}

/// All files below a directory, in a fixed order.
fn files_under(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.append(&mut files_under(&entry.path())),
            _ => found.push(entry.path()),
        }
    }
    found.sort();
    found
}
