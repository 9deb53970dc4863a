//! `servers_file FILE`: the servers of a group are in a file of their own. A running worker follows
//! changes of the file, without a reload.
//!
//! A thread of the worker watches the directories of such files (inotify(7)). A program replaces a
//! file (`rename(2)`) or writes it anew, and the group gets the servers of the new file. Servers
//! that stay keep their state. An invalid or missing file changes nothing: the group keeps its
//! servers, and the error log says why.
//!
//! - In: the groups of each site that the worker takes ([`FileGroups::take`]); events of the
//!   kernel.
//! - Out: [`Group::replace`].

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use weir_log::{Cause, Level, Log, log};

use super::groups::UpstreamBlock;
use super::server::server;
use super::url::Url;
use crate::{Group, Peer};

/// The longest file that is read, in bytes.
const LONGEST: u64 = 16 << 20;
/// How often a missing directory is looked for.
const LOOK: Duration = Duration::from_secs(1);
/// The buffer for events, in bytes: several hundred events.
const EVENTS: usize = 16 << 10;

/// The file with the servers of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServersFile {
    /// The file.
    pub path: PathBuf,
    /// The port of servers without a port; 0 if each needs one.
    pub port: u16,
    /// The method of the group supports neither `backup` nor `slow_start`.
    pub plain: bool,
    /// How many servers the group's zone has room for.
    pub room: Option<usize>,
}

impl ServersFile {
    /// Reads the file. The error is a text that names it.
    fn read(&self) -> Result<Vec<u8>, String> {
        let about = |e: &io::Error| format!("\"{}\" {}", self.path.display(), Cause(e));
        let mut text = Vec::new();
        // Opening a pipe in place of the file must not block the thread, which serves all groups.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(&self.path, flags, Mode::empty()).map(File::from);
        let file = file.map_err(|e| format!("open() {}", about(&e.into())))?;
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            return Err(format!("\"{}\" is no regular file", self.path.display()));
        }
        let read = file.take(LONGEST + 1).read_to_end(&mut text);
        read.map_err(|e| format!("read() {}", about(&e)))?;
        if text.len() as u64 > LONGEST {
            return Err(format!("\"{}\" is longer than {LONGEST} bytes", self.path.display()));
        }
        Ok(text)
    }

    /// Parses the text of the file: `server` lines as in `upstream`, with addresses instead of
    /// names.
    fn peers(&self, text: &[u8]) -> Result<Vec<Arc<Peer>>, String> {
        let tree = weir_conf::read_text(&self.path, text);
        let mut block = UpstreamBlock::<()>::new(String::new());
        block.plain = self.plain;
        let mut read = || {
            if let Some(error) = tree.broken.clone() {
                return Err(error);
            }
            for line in &tree.main {
                if !line.name.is("server") || line.args.is_empty() || !line.block().is_empty() {
                    return Err(
                        line.problem("may not stand here: only \"server ADDRESS ...;\" may")
                    );
                }
                let word = &line.args[0];
                // Names are not resolved here, since that could block for long.
                if Url::parse(&word.bytes, false).is_ok_and(|url| url.address.is_none()) {
                    let text = format!(
                        "\"{}\" is no address; names stay in the configuration",
                        word.lossy()
                    );
                    return Err(line.error_at(word, text));
                }
                server(&mut block, &mut Vec::new(), line, self.port)?;
            }
            Ok(())
        };
        read().map_err(|error| tree.sources.first_line(&error))?;
        let (many, room) = (block.peers.len(), self.room.unwrap_or(usize::MAX));
        if many > room {
            let path = self.path.display();
            return Err(format!("\"{path}\" has {many} servers, and the zone has room for {room}"));
        }
        Ok(block.peers)
    }
}

/// A group, its file, and the hash of the text that was read last.
#[derive(Debug)]
struct Follower {
    group: Weak<Group>,
    file: Arc<ServersFile>,
    seen: Option<u64>,
}

impl Follower {
    /// Reads the file and updates the group if the text has changed.
    fn look(&mut self, log: &Log) {
        let Some(group) = self.group.upgrade() else { return };
        let text = match self.file.read() {
            Ok(text) => text,
            Err(why) => return complain(&group, &why, log),
        };
        let mut hash = DefaultHasher::new();
        text.hash(&mut hash);
        if self.seen.replace(hash.finish()) == Some(hash.finish()) {
            return;
        }
        match self.file.peers(&text) {
            Ok(peers) => {
                log!(
                    log,
                    Info,
                    None,
                    "upstream \"{}\" has {} servers now",
                    group.name,
                    peers.len()
                );
                group.replace(peers);
            }
            Err(why) => complain(&group, &why, log),
        }
    }
}

fn complain(group: &Group, why: &str, log: &Log) {
    let text = format_args!("upstream \"{}\" keeps its servers: {why}", group.name);
    log.write(Level::Error, None, text);
}

/// The state that the thread shares with [`FileGroups::take`].
#[derive(Debug, Default)]
struct Watched {
    /// Watched directories, by watch descriptor.
    directories: HashMap<i32, PathBuf>,
    /// Missing directories, which cannot be watched now.
    lost: BTreeSet<PathBuf>,
    followers: HashMap<PathBuf, Vec<Follower>>,
}

/// The groups of a process that have a `servers_file`.
#[derive(Debug)]
pub struct FileGroups {
    watched: Arc<Mutex<Watched>>,
    /// The inotify instance; `None` until there is a file.
    kernel: Mutex<Option<Arc<OwnedFd>>>,
    log: Arc<Log>,
}

impl FileGroups {
    /// Without groups.
    pub fn new(log: Arc<Log>) -> FileGroups {
        FileGroups { watched: Arc::default(), kernel: Mutex::default(), log }
    }

    /// Adds the groups of a site: new ones get the servers of their files, which are followed from
    /// now on. Reads files, so it must not run on a loop.
    pub fn take(&self, groups: impl IntoIterator<Item = (Arc<Group>, Arc<ServersFile>)>) {
        let mut groups = groups.into_iter().peekable();
        if groups.peek().is_none() {
            return;
        }
        let kernel = self.kernel();
        let mut watched = lock(&self.watched);
        watched.forget();
        for (group, file) in groups {
            if watched.follows(&group, &file.path) {
                continue;
            }
            if let Some(kernel) = &kernel {
                let directory = file.path.parent().unwrap_or(Path::new("/"));
                watched.watch(kernel, directory, &self.log);
            }
            let mut follower = Follower { group: Arc::downgrade(&group), file, seen: None };
            // Read after the watch has begun, so that no change is missed.
            follower.look(&self.log);
            let path = follower.file.path.clone();
            watched.followers.entry(path).or_default().push(follower);
        }
    }

    /// The inotify instance. Creates it at the first call, with the thread that reads it.
    fn kernel(&self) -> Option<Arc<OwnedFd>> {
        let mut kernel = lock(&self.kernel);
        if kernel.is_none() {
            let begun = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
            let begun = begun.map_err(io::Error::from).and_then(|fd| {
                let fd = Arc::new(fd);
                let (queue, watched) = (Arc::clone(&fd), Arc::clone(&self.watched));
                let log = Arc::clone(&self.log);
                let name = "weir: servers".to_owned();
                thread::Builder::new().name(name).spawn(move || follow(&queue, &watched, &log))?;
                Ok(fd)
            });
            match begun {
                Ok(fd) => *kernel = Some(fd),
                Err(e) => {
                    let cause = Cause(&e);
                    log!(
                        self.log,
                        Alert,
                        None,
                        "inotify_init1() failed, \"servers_file\" is not followed {cause}"
                    );
                }
            }
        }
        kernel.clone()
    }
}

impl Watched {
    fn follows(&self, group: &Arc<Group>, path: &Path) -> bool {
        let all = self.followers.get(path).into_iter().flatten();
        all.into_iter().any(|follower| follower.group.as_ptr() == Arc::as_ptr(group))
    }

    /// Drops groups that no site uses any more.
    fn forget(&mut self) {
        self.followers.retain(|_, list| {
            list.retain(|follower| follower.group.strong_count() > 0);
            !list.is_empty()
        });
    }

    fn watch(&mut self, kernel: &OwnedFd, directory: &Path, log: &Log) {
        if self.directories.values().any(|known| known == directory) {
            return;
        }
        let what = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        match inotify::add_watch(kernel, directory, what) {
            Ok(number) => {
                self.lost.remove(directory);
                self.directories.insert(number, directory.to_owned());
            }
            Err(e) => {
                if self.lost.insert(directory.to_owned()) {
                    let e = io::Error::from(e);
                    let path = directory.display();
                    log!(log, Error, None, "inotify_add_watch(\"{path}\") failed {}", Cause(&e));
                }
            }
        }
    }

    /// Watches missing directories that exist again.
    fn find_lost(&mut self, kernel: &OwnedFd, log: &Log) {
        for directory in self.lost.clone() {
            self.watch(kernel, &directory, log);
            if !self.lost.contains(&directory) {
                self.look_in(&directory, log);
            }
        }
    }

    /// Reads all files of a directory.
    fn look_in(&mut self, directory: &Path, log: &Log) {
        let inside = self.followers.iter_mut().filter(|(path, _)| path.parent() == Some(directory));
        inside.flat_map(|(_, list)| list).for_each(|follower| follower.look(log));
    }

    fn look_at(&mut self, path: &Path, log: &Log) {
        let list = self.followers.get_mut(path).into_iter().flatten();
        list.for_each(|follower| follower.look(log));
    }
}

/// The files and directories that events name.
#[derive(Default)]
struct Changed {
    files: BTreeSet<PathBuf>,
    directories: BTreeSet<PathBuf>,
}

/// Handles events, until the process ends.
fn follow(kernel: &OwnedFd, watched: &Mutex<Watched>, log: &Log) {
    let mut buffer = [MaybeUninit::uninit(); EVENTS];
    loop {
        let lost = !lock(watched).lost.is_empty();
        let time = Timespec { tv_sec: LOOK.as_secs() as i64, tv_nsec: 0 };
        let fds = &mut [PollFd::new(kernel, PollFlags::IN)];
        match poll(fds, lost.then_some(&time)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => {
                let e = io::Error::from(e);
                log!(log, Alert, None, "poll() of inotify failed {}", Cause(&e));
                return;
            }
        }
        let mut watched = lock(watched);
        let changed = watched.events(kernel, &mut buffer, log);
        changed.files.iter().for_each(|path| watched.look_at(path, log));
        changed.directories.iter().for_each(|path| watched.look_in(path, log));
        watched.find_lost(kernel, log);
    }
}

impl Watched {
    /// Reads the queued events.
    fn events(&mut self, kernel: &OwnedFd, buffer: &mut [MaybeUninit<u8>], log: &Log) -> Changed {
        let mut changed = Changed::default();
        let mut reader = inotify::Reader::new(kernel, buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return changed,
                Err(Errno::INTR) => continue,
                Err(e) => {
                    let e = io::Error::from(e);
                    log!(log, Alert, None, "read() of inotify failed {}", Cause(&e));
                    return changed;
                }
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                changed.directories.extend(self.directories.values().cloned());
                continue;
            }
            if event.events().contains(ReadFlags::IGNORED) {
                if let Some(gone) = self.directories.remove(&event.wd()) {
                    let path = gone.display();
                    log!(log, Error, None, "directory \"{path}\" of \"servers_file\" is gone");
                    self.lost.insert(gone);
                }
                continue;
            }
            let Some(directory) = self.directories.get(&event.wd()) else { continue };
            let name = event.file_name().map(|name| name.to_bytes()).unwrap_or_default();
            // Kubernetes replaces the link "..data", through which the files of a ConfigMap are reached.
            if name.starts_with(b"..") {
                changed.directories.insert(directory.clone());
            } else {
                use std::os::unix::ffi::OsStrExt;
                changed.files.insert(directory.join(std::ffi::OsStr::from_bytes(name)));
            }
        }
    }
}

/// Locks a mutex. The lists are valid even if a thread panicked while it held the lock.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
