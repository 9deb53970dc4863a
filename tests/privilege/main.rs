//! What the master does as root for a worker, or at a path that other users can change. There are
//! two attackers: one has a worker's descriptors and memory, the other an account on the machine.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use weir_testkit::{Dir, under_strace};

mod line;
mod logs;
mod planted;
mod rights;
mod spoilt;
mod users;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// The user `daemon`, which these workers have: the same number on every Linux.
const DAEMON: u32 = 1;

/// Whether this process may do what these tests ask of it; says so where it may not.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("not run: only root can give workers another user");
    }
    root
}

/// A directory in the test's that belongs to the workers' user.
fn theirs(dir: &Dir, name: &str) -> PathBuf {
    let path = dir.file(name);
    fs::create_dir_all(&path).unwrap();
    lchown(&path, Some(DAEMON), Some(DAEMON)).unwrap();
    path
}

/// What only root may change, in a directory of its own: files and a directory.
fn outside(dir: &Dir) -> PathBuf {
    let path = dir.file("outside");
    fs::create_dir_all(path.join("directory")).unwrap();
    fs::set_permissions(path.join("directory"), Permissions::from_mode(0o700)).unwrap();
    for name in ["victim", "there"] {
        fs::write(path.join(name), "secret\n").unwrap();
        fs::set_permissions(path.join(name), Permissions::from_mode(0o600)).unwrap();
    }
    path
}

/// All that stands in a directory, with owners, permissions and contents.
fn state(dir: &Path) -> Vec<(PathBuf, u32, u32, u32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        let contents = if about.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if about.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.push((path, about.uid(), about.gid(), about.mode(), contents));
    }
    found.sort();
    found
}

/// What the kernel says of each thread of a process: the values after one of the names in its status.
fn statuses(process: i32, name: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let line = |task: fs::DirEntry| -> Option<String> {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let line = status.lines().find(|line| line.split(':').next() == Some(name))?;
        Some(line[name.len() + 1..].trim().to_owned())
    };
    tasks.filter_map(|task| line(task.ok()?)).collect()
}

/// weir under strace, which changes what the kernel does as `inject` says; nothing where that cannot be.
fn strace(dir: &Dir, call: &str, inject: &str) -> Option<Command> {
    let mut command = Command::new(under_strace(dir, WEIR, call, inject)?);
    command.arg("-p").arg(dir.path()).arg("-e").arg(dir.file("error.log")).stderr(Stdio::null());
    Some(command)
}
