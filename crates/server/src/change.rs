//! Changes of the configuration while the server runs.
//!
//! A configuration arrives as a text (`PUT /config` of `weir_api`), as a tree or in parts. All of
//! these end in [`Master::change`]. The master compiles the tree as `-t` does; an invalid one
//! changes nothing. Then there are two ways:
//!
//! - **By running workers**, if only what the `http` block serves differs. All outside of that block is
//!   equal, the sockets are the same, and all shared memory that it names is open.
//!   [`needs_new_workers`] is this rule. The master adopts the new cycle, so that workers that start
//!   later begin with it. Each running worker gets the tree, the files that the configuration names,
//!   and new log files, which it may not be allowed to open itself ([`Parcel`]). A thread compiles the
//!   site, and each loop takes it between two turns. It serves all requests that begin from then on,
//!   on any connection. Older requests keep the old site. The worker reports when its last loop has
//!   taken the new one.
//! - **By new workers**, as in a reload, if anything else has changed or a worker could not take the
//!   site.
//!
//! Directives that decide over the server's rights and its place on the machine are only read from
//! disk, at a reload. A text that changes them is refused ([`FROM_DISK`]).
//!
//! - In: a tree, from [`Master::change`]'s callers: the channel of a worker whose configuration has a `weir_api ... config`.
//! - Out: sites in loops ([`Service::take`]), new workers, and a [`ChangeOutcome`](weir_values::ChangeOutcome) for the caller.
//!
//! A site is freed when its last request has ended. Each request holds the state of its loop, which
//! owns the site ([`weir_sys::lent`]).
//!
//! [`Master::change`]: crate::master::Master::change
//! [`Service::take`]: crate::service::Service::take

mod runs;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use weir_conf::{
    ConfigTree, Directive, DirectiveBody, FileTexts, Inside, Parts, PartsError, Pos, Sources, Word,
    is_same, read_bytes, read_tree, with_files, write_bytes,
};
use weir_log::{Log, LogFile, OpenLogs, log};

use crate::channel::MOST_FDS;
use crate::cycle::{Complaint, Edition, Origin, Plan};
use crate::service::Sites;
use crate::sockets::SocketsFailed;
use runs::Run;
use weir_values::{ChangeKind, ChangeOutcome, ChangeRequest};
use weir_zone::Zones;

/// The longest request that is read, in bytes.
pub const LONGEST: u64 = 257 << 20;
/// The longest parcel in bytes. In addition to the text it has the files that the text names.
const LONGEST_PARCEL: u64 = 1 << 30;

/// Directives of `main` that only a reload from disk may change. With them a client of the API
/// could do on the machine what the workers' user may not.
const FROM_DISK: [&str; 9] = [
    "user",
    "daemon",
    "master_process",
    "pid",
    "lock_file",
    "load_module",
    "env",
    "working_directory",
    "error_log",
];

/// The name of a directive of [`FROM_DISK`] that differs.
pub fn from_disk(old: &[Directive], new: &[Directive]) -> Option<&'static str> {
    let of = |list: &[Directive], name: &str| -> Vec<Directive> {
        list.iter().filter(|directive| directive.name.is(name)).cloned().collect()
    };
    FROM_DISK.into_iter().find(|name| !is_same(&of(old, name), &of(new, name)))
}

/// The reason why running workers cannot take a plan in addition to what they serve. Zones are
/// checked when they are opened.
pub fn needs_new_workers(
    old: &Sites,
    old_main: &[Directive],
    new: &Sites,
    new_main: &[Directive],
) -> Option<&'static str> {
    let (Some(http), Some(next)) = (&old.http, &new.http) else {
        return Some("there is no \"http\" block");
    };
    if !is_same_around(old_main, new_main) {
        return Some("something outside of \"http\" has changed");
    }
    if http.listens() != next.listens() {
        return Some("it listens elsewhere");
    }
    if !http.begins_as(next) {
        return Some("an address begins or ceases to have \"ssl\" or \"proxy_protocol\"");
    }
    if [old_main, new_main].into_iter().any(|main| Inside::of(main).scripts) {
        return Some("it has scripts, whose virtual machines begin with a worker");
    }
    None
}

/// Whether two configurations are equal outside of their `http` blocks.
pub fn is_same_around(old_main: &[Directive], new_main: &[Directive]) -> bool {
    let rest = |main: &[Directive]| -> Vec<Directive> {
        main.iter().filter(|directive| !directive.name.is("http")).cloned().collect()
    };
    is_same(&rest(old_main), &rest(new_main))
}

/// Seals of a file in memory that no process can change or truncate.
const SEALED: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// A sealed memory file with these bytes, which no process can change or truncate.
pub fn memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let fd = memfd_create("weir", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    fcntl_add_seals(&file, SEALED)?;
    Ok(file.into())
}

/// The content of such a file, if it has at most `most` bytes. Other processes share its file
/// offset and may read it at the same time, so the offset is not used.
pub fn contents(fd: OwnedFd, most: u64) -> io::Result<Vec<u8>> {
    let file = File::from(fd);
    // A pipe, a socket, and a file of a file system that is a program of its sender could make
    // their reader wait.
    if !fcntl_get_seals(&file)?.contains(SEALED) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let all = file.metadata()?.len();
    let len = usize::try_from(all).ok().filter(|_| all <= most);
    let mut bytes = vec![0; len.ok_or(io::ErrorKind::FileTooLarge)?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// A sealed file in memory with a number before its content. The number tells which request an
/// answer is for.
pub fn numbered(number: u64, bytes: &[u8]) -> io::Result<OwnedFd> {
    memory(&[&number.to_le_bytes(), bytes].concat())
}

/// The number and the content of such a file. None if it cannot be read or is too long.
pub fn number_and_rest(fd: OwnedFd) -> Option<(u64, Vec<u8>)> {
    let mut bytes = contents(fd, LONGEST).ok()?;
    let number = u64::from_le_bytes(*bytes.first_chunk()?);
    bytes.drain(..size_of::<u64>());
    Some((number, bytes))
}

/// The data from which a running worker makes another site. Blocks of `http` that the worker
/// already has are given by their numbers.
pub struct Parcel {
    memory: OwnedFd,
    logs: Vec<Arc<LogFile>>,
}

impl Parcel {
    /// Packs directives with their texts, the files that were read, and the logs that were opened.
    /// `None` if there are too many logs.
    pub fn new(
        before: &Edition,
        text: &Edition,
        sources: &Sources,
        files: &FileTexts,
        logs: Vec<Arc<LogFile>>,
    ) -> io::Result<Option<Parcel>> {
        if logs.len() >= MOST_FDS {
            return Ok(None);
        }
        let paths: Vec<_> =
            logs.iter().map(|log| log.path().as_os_str().as_encoded_bytes()).collect();
        let mut bytes = (paths.len() as u64).to_le_bytes().to_vec();
        for path in paths {
            bytes.extend_from_slice(&(path.len() as u64).to_le_bytes());
            bytes.extend_from_slice(path);
        }
        let (main, runs) = runs::part(&before.main, &text.main);
        bytes.extend(before.number.to_le_bytes());
        bytes.extend(text.number.to_le_bytes());
        bytes.extend((runs.len() as u64).to_le_bytes());
        for run in &runs {
            let (from, len) = run.to_numbers();
            bytes.extend(from.to_le_bytes());
            bytes.extend(len.to_le_bytes());
        }
        // The sources have no positions of blocks that come from the previous site. They are only
        // for warnings, which the master has logged.
        let none = Sources::default();
        let sources = if runs.iter().any(Run::is_old) { &none } else { sources };
        bytes.append(&mut write_bytes(sources, &main, files));
        Ok(Some(Parcel { memory: memory(&bytes)?, logs }))
    }

    /// The descriptors to send, in order.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let logs = self.logs.iter().map(|log| log.as_fd());
        std::iter::once(self.memory.as_fd()).chain(logs).collect()
    }
}

/// The content of a parcel.
struct Unpacked {
    tree: ConfigTree,
    number: u64,
    files: FileTexts,
    /// Keeps them open while this value exists.
    logs: Vec<Arc<LogFile>>,
}

fn unpack(fds: Vec<OwnedFd>, before: &Edition, logs: &OpenLogs) -> Option<Unpacked> {
    let mut fds = fds.into_iter();
    let bytes = contents(fds.next()?, LONGEST_PARCEL).ok()?;
    let mut rest = bytes.as_slice();
    let mut adopted = Vec::new();
    for _ in 0..number(&mut rest)? {
        let len = number(&mut rest)?;
        let (path, left) = rest.split_at_checked(len)?;
        rest = left;
        let path = PathBuf::from(OsStr::from_bytes(path));
        adopted.push(logs.adopt(&path, File::from(fds.next()?)));
    }
    // The numbers of blocks refer to the edition that this worker has.
    (long(&mut rest)? == before.number).then_some(())?;
    let own = long(&mut rest)?;
    let count = number(&mut rest)?;
    let run = |rest: &mut &[u8]| Some(Run::of_numbers(long(rest)?, long(rest)?));
    let runs: Option<Vec<Run>> = (0..count).map(|_| run(&mut rest)).collect();
    let (mut tree, files) = read_bytes(rest)?;
    tree.main = runs::join(&before.main, tree.main, &runs?)?;
    Some(Unpacked { tree, number: own, files, logs: adopted })
}

fn long(bytes: &mut &[u8]) -> Option<u64> {
    let (n, rest) = bytes.split_at_checked(8)?;
    *bytes = rest;
    Some(u64::from_le_bytes(n.try_into().ok()?))
}

fn number(bytes: &mut &[u8]) -> Option<usize> {
    usize::try_from(long(bytes)?).ok()
}

/// The worker's part: compiles the content of a parcel while the old site serves. May take long.
pub fn compile(
    origin: &Origin,
    fds: Vec<OwnedFd>,
    (before, zones, text): (&Sites, &Zones, &Edition),
    log: &Log,
) -> Option<(Sites, Zones, Edition)> {
    let Unpacked { tree, number, files, logs } = unpack(fds, text, &origin.logs)?;
    let known = origin.logs.paths();
    let plan =
        with_files(files, || origin.compile(tree, Some(before), Some(before), log)).0.ok()?;
    // The master, which has the rights, has opened all of them.
    origin.logs.leave_waiting();
    if let Some(path) = origin.logs.paths().iter().find(|path| !known.contains(path)) {
        log!(
            log,
            Error,
            None,
            "a new configuration logs to \"{}\", which is not open here",
            path.display()
        );
        return None;
    }
    drop(logs);
    let Plan { sites, zones: declared, text, .. } = plan;
    let opened = declared.open(zones).ok().filter(|opened| opened.are_of(zones))?;
    let (stream, mail) = (before.stream.clone(), before.mail.clone());
    Some((Sites { http: sites.http, stream, mail }, opened, Edition { number, ..text }))
}

/// What arrived with a configuration in addition to its directives.
#[derive(Clone, Debug, Default)]
pub struct Attached {
    /// Files that are read in place of those on disk.
    pub files: FileTexts,
    /// The parts, if it arrived in parts. A later configuration without parts removes them.
    pub parts: Parts,
}

/// The requested tree, and what comes with it. `main` and `attached` are in use.
pub fn wanted(
    origin: &Origin,
    main: &[Directive],
    attached: &Attached,
    request: &ChangeRequest,
) -> Result<(ConfigTree, Attached), ChangeOutcome> {
    let globals = origin.globals.as_deref();
    let parts = || attached.parts.clone();
    let unreadable = |text: &str| ChangeOutcome::new(ChangeKind::Unreadable, text);
    let unknown = |text: String| ChangeOutcome::new(ChangeKind::Unknown, text);
    let (block, group) = match request {
        ChangeRequest::Text(text) => {
            return Ok((tree(origin, text), Attached { parts: parts(), ..Attached::default() }));
        }
        ChangeRequest::Tree(bytes) => {
            let name = origin.paths.conf_prefix.join(TREE_NAME);
            let (tree, files) =
                read_tree(bytes, &name, globals).ok_or_else(|| unreadable(UNREADABLE))?;
            return Ok((tree, Attached { files, parts: parts() }));
        }
        ChangeRequest::Parts(bytes) => {
            let (tree, parts) =
                attached.parts.read(bytes, globals).map_err(|error| match error {
                    PartsError::Form(why) => unreadable(&why),
                    PartsError::Unknown(name) => {
                        unknown(format!("no part of the configuration before is called \"{name}\""))
                    }
                })?;
            return Ok((tree, Attached { parts, ..Attached::default() }));
        }
        ChangeRequest::AddServer { block, group, .. }
        | ChangeRequest::RemoveServer { block, group, .. } => (block, group),
    };
    let mut main = main.to_vec();
    let is_group =
        |d: &Directive| d.name.is("upstream") && d.arg(0).is_some_and(|name| name.is(group));
    let lines = inside(&mut main, |d| d.name.is(block)).map(|(lines, _)| lines);
    let found = lines.and_then(|lines| inside(lines, is_group));
    let (servers, pos) =
        found.ok_or_else(|| unknown(format!("the configuration has no upstream \"{group}\"")))?;
    let at = |servers: &[Directive], name: &str| {
        servers.iter().position(|d| d.name.is("server") && d.arg(0).is_some_and(|w| w.is(name)))
    };
    match request {
        ChangeRequest::AddServer { words, .. } => {
            if words.first().is_some_and(|name| at(servers, name).is_some()) {
                let text = "the group has a line with this server";
                return Err(ChangeOutcome::new(ChangeKind::Present, text));
            }
            let word = |text: &str| Word { bytes: text.into(), pos, quoted: false };
            let args = words.iter().map(|text| word(text)).collect();
            let body = DirectiveBody::None;
            servers.push(Directive { name: word("server"), args, body, end: pos, close: pos });
        }
        ChangeRequest::RemoveServer { server, .. } => {
            let text = || unknown("the group has no line with this server".to_owned());
            let at = at(servers, server).ok_or_else(text)?;
            servers.remove(at);
        }
        ChangeRequest::Text(_) | ChangeRequest::Tree(_) | ChangeRequest::Parts(_) => {}
    }
    Ok((ConfigTree { sources: Sources::default(), main, broken: None }, attached.clone()))
}

/// The lines of the first block for which `is` holds, and the position of its end.
fn inside(
    list: &mut [Directive],
    is: impl Fn(&Directive) -> bool,
) -> Option<(&mut Vec<Directive>, Pos)> {
    let found = list.iter_mut().find(|directive| is(directive))?;
    match &mut found.body {
        DirectiveBody::Block(lines) => Some((lines.edit(), found.close)),
        _ => None,
    }
}

/// Parses a text as a tree. Its `include` lines are relative to the file on disk.
fn tree(origin: &Origin, text: &[u8]) -> ConfigTree {
    let name = origin.paths.conf_prefix.join(NAME);
    weir_conf::read_text_with(&name, text, origin.globals.as_deref())
}

/// The name of a text in messages.
const NAME: &str = "PUT-config";

/// The name of a tree in messages. Its text shows the lines.
const TREE_NAME: &str = "PUT-config-tree";
/// The error for a body that is no tree.
const UNREADABLE: &str = "the body is no tree that begins with \"weir tree 1\"";

/// The details are in the log.
impl From<SocketsFailed> for Complaint {
    fn from(_: SocketsFailed) -> Complaint {
        Complaint::new("the error log says why it cannot be taken")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_in_memory_that_cannot_change_are_read() {
        assert_eq!(contents(memory(b"text").unwrap(), 4).unwrap(), b"text");
        assert!(contents(memory(b"text").unwrap(), 3).is_err());
        let unsealed = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        assert!(contents(unsealed.unwrap(), 4).is_err());
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(contents(pipe, 4).is_err());
        assert!(
            contents(File::open(std::env::current_exe().unwrap()).unwrap().into(), 1 << 40)
                .is_err()
        );
    }
}
