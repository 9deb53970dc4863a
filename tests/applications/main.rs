//! Applications behind weir, each with its own client and the configuration that its documentation recommends.
//!
//! `.ci/run` installs the applications. A test without its application says so and passes. With
//! `CI` set in the environment it fails instead.

mod etcd;
mod git;
mod grpc;
mod litmus;
mod node;
mod registry;
mod wordpress;

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use weir_testkit::{Client, Dir, Process, Server, ask_until, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Directories of programs beside those of `PATH`.
const MORE: [&str; 3] = ["/usr/sbin", "/usr/bin", "/usr/lib/git-core"];

/// An application's program. `None` where it is absent.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(MORE.map(PathBuf::from));
    there(folders.map(|folder| folder.join(name)), name)
}

/// The first of these paths that exists.
fn there(mut paths: impl Iterator<Item = PathBuf>, name: &str) -> Option<PathBuf> {
    let found = paths.find(|path| path.exists());
    if found.is_none() {
        let text = format!("{name} is not installed (.ci/run installs it)");
        assert!(std::env::var_os("CI").is_none(), "{text}");
        eprintln!("skipped: {text}");
    }
    found
}

/// Where `.ci/run` puts what npm and Go install.
fn installed(name: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory");
    there([target.join("applications").join(name)].into_iter(), name)
}

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/applications").join(name)
}

/// Starts a program of an application; what it says is in the directory's file `log`.
fn start(command: &mut Command, dir: &Dir, log: &str) -> Process {
    let out = File::create(dir.file(log)).expect("a log of the application");
    let error = out.try_clone().expect("a second descriptor of the log");
    Process::start(command.stdout(out).stderr(error))
}

/// Waits until something listens at a port of 127.0.0.1.
fn wait_port(port: u16, dir: &Dir, log: &str) {
    let up = ask_until(|| Client::try_connect(port).is_ok());
    assert!(up, "no application listens:\n{}", dir.read(log));
}

/// Waits until a file of the directory says something.
fn wait_said(dir: &Dir, file: &str, text: &str) {
    let said = until(dir.path(), || dir.read(file).contains(text));
    assert!(said, "{file} does not say {text:?}:\n{}", dir.read(file));
}

/// Runs a client to its end, and returns what it printed; it must succeed.
fn client<S: AsRef<OsStr>>(program: &Path, args: impl IntoIterator<Item = S>) -> String {
    done(Command::new(program).args(args))
}

/// As [`client`], of a command with more than arguments.
fn done(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let Output { status, stdout, stderr } =
        output.unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
    let said = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{command:?}: {status}\n{said}{}", String::from_utf8_lossy(&stderr));
    said
}

/// Bytes that do not compress.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(length).collect()
}

/// weir in front of an application: one server, with these lines.
fn weir(dir: Dir, http: &str, server: &str) -> Server {
    let conf = format!(
        "user root; worker_processes 2; events {{ }}
         http {{ {http} server {{ listen 127.0.0.1:%%PORT%%; {server} }} }}"
    );
    Server::start_in(dir, WEIR, &conf)
}

/// The parameters of FastCGI that distributions have beside nginx.conf.
const FASTCGI_PARAMS: &str = include_str!("fastcgi_params");

/// Nothing that happened is a failure of weir's own.
fn went_well(server: &Server) {
    let log = server.log();
    for word in ["[alert]", "[crit]", "[emerg]", "panicked"] {
        assert!(!log.contains(word), "{log}");
    }
}
