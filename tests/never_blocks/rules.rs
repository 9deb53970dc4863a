//! Which system calls may block the thread that makes them.

use std::collections::{HashMap, HashSet};

use crate::calls::Call;

/// They walk a path, and maybe change what is at its end.
const PATHS: &[&str] = &[
    "access",
    "chdir",
    "chmod",
    "chown",
    "creat",
    "execve",
    "faccessat",
    "faccessat2",
    "fchmodat",
    "fchownat",
    "futimesat",
    "getxattr",
    "inotify_add_watch",
    "lchown",
    "link",
    "linkat",
    "lstat",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "open",
    "openat",
    "readlink",
    "readlinkat",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "stat",
    "statfs",
    "symlink",
    "symlinkat",
    "truncate",
    "unlink",
    "unlinkat",
    "utime",
    "utimensat",
    "utimes",
];
/// They do something to an open file.
const FILES: &[&str] = &[
    "copy_file_range",
    "fadvise64",
    "fallocate",
    "fchmod",
    "fchown",
    "fdatasync",
    "fgetxattr",
    "fstatfs",
    "fsync",
    "ftruncate",
    "getdents",
    "getdents64",
    "pread64",
    "preadv",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "read",
    "readahead",
    "readv",
    "splice",
    "sync_file_range",
    "syncfs",
    "write",
    "writev",
];
const WAITS: &[&str] = &["epoll_wait", "epoll_pwait", "epoll_pwait2"];

/// How many loops a trace shows, and all that may hold one of them up.
pub struct Verdict {
    pub loops: usize,
    /// Calls that were looked at.
    pub calls: usize,
    /// Of these, files that were sent without a copy.
    pub sent: usize,
    pub blocking: Vec<String>,
}

/// Loops are the threads that wait for events. What they do before their first wait is their start, and after the
/// last their end; both may take their time.
pub fn judge(calls: &[Call]) -> Verdict {
    let mut spans: HashMap<u32, (usize, usize)> = HashMap::new();
    for (at, call) in calls.iter().enumerate() {
        if WAITS.contains(&call.name.as_str()) {
            spans.entry(call.thread).or_insert((at, at)).1 = at;
        }
    }
    let mut known = Known::default();
    let mut verdict = Verdict { loops: spans.len(), calls: 0, sent: 0, blocking: Vec::new() };
    for (at, call) in calls.iter().enumerate() {
        let serves =
            spans.get(&call.thread).is_some_and(|(first, last)| (*first..=*last).contains(&at));
        verdict.calls += usize::from(serves);
        verdict.sent += usize::from(serves && call.name == "sendfile");
        if serves && known.may_wait(call) {
            verdict.blocking.push(call.text());
        }
        known.learn(call);
    }
    verdict
}

/// What earlier calls tell of the later ones.
#[derive(Default)]
struct Known {
    /// The process of each thread that another one has started.
    process: HashMap<u32, u32>,
    /// Files that a loop has opened from memory, for reading: their inodes need no disk. By process and number.
    opened: HashSet<File>,
    /// Of these, those that a loop has asked about in its running turn: closing them is dropping a reference, unless
    /// they were removed in this turn.
    asked: HashMap<File, u32>,
    /// Files of which a loop has found bytes in memory in its running turn.
    resident: HashMap<File, u32>,
}

/// A process, and its number for an open file.
type File = (u32, u32);

impl Known {
    fn process(&self, thread: u32) -> u32 {
        self.process.get(&thread).copied().unwrap_or(thread)
    }

    fn file(&self, call: &Call, at: usize) -> Option<File> {
        call.descriptor(at).map(|fd| (self.process(call.thread), fd.number))
    }

    fn is_opened(&self, call: &Call) -> bool {
        self.file(call, 0).is_some_and(|file| self.opened.contains(&file))
    }

    /// Whether the thread that makes the call has learnt this of its file in the running turn.
    fn knows(&self, of: &HashMap<File, u32>, call: &Call, at: usize) -> bool {
        self.file(call, at).is_some_and(|file| of.get(&file) == Some(&call.thread))
    }

    fn may_wait(&self, call: &Call) -> bool {
        let name = call.name.as_str();
        let on_file = |at| call.descriptor(at).is_some_and(|fd| fd.is_file());
        if PATHS.contains(&name) {
            // The kernel's own tables are memory.
            return !["\"/proc/", "\"/dev/"].iter().any(|place| call.args.contains(place));
        }
        if FILES.contains(&name) {
            return on_file(0) || (name == "splice" && on_file(2));
        }
        match name {
            "openat2" => !call.args.contains("RESOLVE_CACHED"),
            "newfstatat" | "fstat" | "statx" => {
                let of_path = !call.args.contains("\"\"") && name != "fstat";
                let fresh = self.is_opened(call);
                let unasking = call.args.contains("AT_STATX_DONT_SYNC");
                of_path || (on_file(0) && !fresh && !unasking)
            }
            "preadv2" => on_file(0) && !call.args.contains("RWF_NOWAIT"),
            "sendfile" => on_file(1) && !self.knows(&self.resident, call, 1),
            "mmap" => on_file(4),
            "close" => on_file(0) && !(self.is_opened(call) && self.knows(&self.asked, call, 0)),
            "dup2" | "dup3" => on_file(1),
            _ => false,
        }
    }

    fn learn(&mut self, call: &Call) {
        let (thread, process) = (call.thread, self.process(call.thread));
        let file = self.file(call, 0);
        match call.name.as_str() {
            name if WAITS.contains(&name) => {
                self.asked.retain(|_, by| *by != thread);
                self.resident.retain(|_, by| *by != thread);
            }
            "clone" | "clone3" if call.args.contains("CLONE_THREAD") => {
                if let Some(thread) = call.returned() {
                    self.process.insert(thread as u32, process);
                }
            }
            "openat2" => {
                let kept = call.returned().map(|fd| (process, fd as u32));
                let writable = call.args.contains("O_RDWR") || call.args.contains("O_WRONLY");
                if call.args.contains("RESOLVE_CACHED") && !writable {
                    self.opened.extend(kept);
                    self.asked.extend(kept.map(|file| (file, thread)));
                }
            }
            "newfstatat" | "fstat" => self.asked.extend(file.map(|file| (file, thread))),
            "preadv2" if call.returned().is_some() => {
                self.resident.extend(file.map(|file| (file, thread)));
            }
            "close" => {
                if let Some(file) = file {
                    self.opened.remove(&file);
                    self.asked.remove(&file);
                    self.resident.remove(&file);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn what_may_wait_is_found() {
    let verdict = |middle: &str| {
        let text = format!(
            "1 epoll_wait(3<anon_inode:[eventpoll]>, [], 1, 0) = 0\n{middle}\n\
             1 epoll_wait(3<anon_inode:[eventpoll]>, [], 1, 0) = 0\n"
        );
        judge(&crate::calls::read(&text)).blocking.len()
    };
    let open =
        "1 openat2(AT_FDCWD</>, \"/a\", {flags=O_RDONLY, resolve=RESOLVE_CACHED}, 24) = 9</a>";
    let turn = "1 epoll_wait(3<anon_inode:[eventpoll]>, [], 1, 0) = 0";
    let stat = "1 newfstatat(9</a>, \"\", {}, AT_EMPTY_PATH) = 0";
    let read = "1 preadv2(9</a>, [], 1, 0, RWF_NOWAIT) = 1";
    let send = "1 sendfile(4<socket:[1]>, 9</a>, [0], 5) = 5";
    let close = "1 close(9</a>) = 0";
    for fine in [
        open,
        &format!("{open}\n{stat}\n{close}"),
        &format!("{open}\n{turn}\n{stat}\n{close}"),
        &format!("{open}\n{read}\n{send}"),
        "1 write(7<socket:[1]>, \"x\", 1) = 1",
        "1 readlink(\"/proc/self/fd/9\", \"/a\", 1) = 2",
        "2 openat(AT_FDCWD</>, \"/a\", O_RDONLY) = 9</a>",
        "1 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x1",
    ] {
        assert_eq!(verdict(fine), 0, "{fine}");
    }
    for waits in [
        "1 openat(AT_FDCWD</>, \"/a\", O_RDONLY) = 9</a>",
        "1 openat2(AT_FDCWD</>, \"/a\", {flags=O_RDONLY, resolve=0}, 24) = 9</a>",
        "1 write(9</a>, \"x\", 1) = 1",
        "1 newfstatat(AT_FDCWD</>, \"/a\", {}, 0) = 0",
        stat,
        close,
        send,
        &format!("{open}\n{turn}\n{close}"),
        &format!("{open}\n{read}\n{turn}\n{send}"),
        "1 preadv2(9</a>, [], 1, 0, 0) = 1",
        "1 unlink(\"/a\") = 0",
        "1 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 9</a>, 0) = 0x1",
        "1 dup3(9</b>, 4</a>, O_CLOEXEC) = 4</a>",
    ] {
        assert_eq!(verdict(waits), 1, "{waits}");
    }
}
