//! A site that changes while it runs.
//!
//! A configuration comes as a text (`PUT /config` of `weir_api`), as a tree or in parts. All end in [`Master::change`]. It compiles
//! the tree in the master as `-t` does; what is wrong changes nothing. Then one of two ways is taken:
//!
//! - **By running workers**, if the configuration differs from the one in use only in what its `http` block serves: outside of
//!   that block it says the same, it listens where and how the old one does, and all shared memory that it names is open.
//!   [`needs_new_workers`] is this rule. The master goes on with the new cycle, so that a worker which is started later begins
//!   with it. Each running worker gets the tree, the files that the configuration names, and log files that are new,
//!   since it may not be allowed to open them itself ([`Parcel`]). A thread compiles the site; each loop takes it between two
//!   of its turns. Requests that begin from then on are served by it, on whatever connection they come. Requests that have
//!   begun keep the old one. The worker answers when its last loop has taken the site.
//! - **By new workers**, as a reload does, if anything else has changed, or if a worker could not take the site.
//!
//! What decides over the server's rights and its place on the machine is only read at a reload from disk: a text that
//! changes it is refused ([`FROM_DISK`]).
//!
//! - In: a tree, from [`Master::change`]'s callers: the channel of a worker whose configuration has a `weir_api ... config`.
//! - Out: sites in loops ([`Service::take`]), new workers, and a [`ChangeOutcome`](weir_values::ChangeOutcome) for the caller.
//!
//! A site is freed when its last request has gone: each request holds the state of its loop, which owns the site
//! ([`weir_sys::lent`]).
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

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
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

/// The longest request that is read.
pub const LONGEST: u64 = 257 << 20;
/// The longest parcel: beside the text it has the files that the text names.
const LONGEST_PARCEL: u64 = 1 << 30;

/// Directives of `main` that only a reload from disk changes: with them, a client of the API could do on the machine what
/// the workers' user may not.
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

/// A directive outside of all blocks that another text may not change.
pub fn from_disk(old: &[Directive], new: &[Directive]) -> Option<&'static str> {
    let of = |list: &[Directive], name: &str| -> Vec<Directive> {
        list.iter().filter(|directive| directive.name.is(name)).cloned().collect()
    };
    FROM_DISK.into_iter().find(|name| !is_same(&of(old, name), &of(new, name)))
}

/// Why running workers cannot take a plan beside what they serve; zones are looked at when they are opened.
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

/// Whether two configurations say the same outside of their `http` blocks.
pub fn is_same_around(old_main: &[Directive], new_main: &[Directive]) -> bool {
    let rest = |main: &[Directive]| -> Vec<Directive> {
        main.iter().filter(|directive| !directive.name.is("http")).cloned().collect()
    };
    is_same(&rest(old_main), &rest(new_main))
}

/// Memory with these bytes, which no process can change or shorten.
pub fn memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let fd = memfd_create("weir", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// What stands in such memory, if it is not longer than `most`. Other processes may read it at the same time: they share
/// the place in it, which stays where it is.
pub fn contents(fd: OwnedFd, most: u64) -> io::Result<Vec<u8>> {
    let file = File::from(fd);
    let about = file.metadata()?;
    // A pipe or a socket could keep its reader waiting.
    if !about.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let len = usize::try_from(about.len()).ok().filter(|_| about.len() <= most);
    let mut bytes = vec![0; len.ok_or(io::ErrorKind::FileTooLarge)?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// What a running worker needs for another site. Blocks of `http` that are those of the site before are numbers of it.
pub struct Parcel {
    memory: OwnedFd,
    logs: Vec<Arc<LogFile>>,
}

impl Parcel {
    /// Of directives with their texts, the files that were read meanwhile, and the logs that were opened for it.
    /// `None`: there are too many of these.
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
        // Places in a block of the site before are not in these texts. The master has said what is odd.
        let none = Sources::default();
        let sources = if runs.iter().any(Run::is_old) { &none } else { sources };
        bytes.append(&mut write_bytes(sources, &main, files));
        Ok(Some(Parcel { memory: memory(&bytes)?, logs }))
    }

    /// Its descriptors, in order.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let logs = self.logs.iter().map(|log| log.as_fd());
        std::iter::once(self.memory.as_fd()).chain(logs).collect()
    }
}

/// What a worker has taken out of a parcel.
struct Unpacked {
    tree: ConfigTree,
    number: u64,
    files: FileTexts,
    /// They stay open as long as this is there.
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
    // The runs may speak of no other one.
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

/// A worker's part: compiles what has come in a parcel, beside what it serves. May take its time.
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
    // The master has opened them, with its rights.
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

/// What came with the configuration in use, or with one that is wanted.
#[derive(Clone, Debug, Default)]
pub struct Attached {
    /// Files that are read in place of those on the disk.
    pub files: FileTexts,
    /// Its parts, if it has come in parts. Another configuration that has come in no parts leaves them.
    pub parts: Parts,
}

/// What a worker asks for, as a tree and what came with it. `main` is in use, with what is `attached`.
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

/// What stands in the first block like that, and where it ends.
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

/// The text of a configuration as a tree: what it includes is beside the file on the disk.
fn tree(origin: &Origin, text: &[u8]) -> ConfigTree {
    let name = origin.paths.conf_prefix.join(NAME);
    weir_conf::read_text_with(&name, text, origin.globals.as_deref())
}

/// The name of a text in messages.
const NAME: &str = "PUT-config";

/// The same of a tree: the text that shows its lines.
const TREE_NAME: &str = "PUT-config-tree";
/// What is said of other bytes.
const UNREADABLE: &str = "the body is no tree that begins with \"weir tree 1\"";

/// What went wrong after the configuration was compiled stands in the log.
impl From<SocketsFailed> for Complaint {
    fn from(_: SocketsFailed) -> Complaint {
        Complaint::new("the error log says why it cannot be taken")
    }
}
