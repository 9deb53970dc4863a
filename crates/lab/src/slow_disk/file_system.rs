//! The FUSE file system. Each request is performed at once, or after a delay by a thread.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};

use super::delays::{Faults, Operation};
use super::disk::{Changes, Disk, FileOwner};
use crate::running::pause;

/// How long the kernel may cache names and attributes.
const CACHE_TTL: Duration = Duration::from_secs(1);
/// Background requests, such as read-aheads, that the kernel may have in flight. A slow one must
/// not block others.
const BACKGROUND: u16 = 512;

pub(crate) struct FileSystem {
    disk: Arc<Disk>,
    faults: Arc<Faults>,
}

impl FileSystem {
    pub(crate) fn new(disk: Disk, faults: Arc<Faults>) -> FileSystem {
        FileSystem { disk: Arc::new(disk), faults }
    }

    /// Performs `work` now, or after a delay on a thread of its own.
    fn perform(&self, operation: Operation, work: impl FnOnce(&Disk) + Send + 'static) {
        let Some(delay) = self.faults.draw(operation) else { return work(&self.disk) };
        let disk = Arc::clone(&self.disk);
        let later = move || {
            pause(delay);
            work(&disk);
        };
        // If no thread can be started, `work` is dropped, and its reply reports an error.
        let _ = std::thread::Builder::new().name("slow operation".to_owned()).spawn(later);
    }
}

/// Replies with the result or the error.
macro_rules! answer {
    ($reply:ident, $done:expr, $value:pat => $say:expr) => {
        match $done {
            Ok($value) => $say,
            Err(e) => $reply.error(errno(e)),
        }
    };
}

impl Filesystem for FileSystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // An older kernel may lack these capabilities and works without them.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.perform(Operation::Getattr, move |disk| entry(reply, disk.lookup(parent.0, &name)));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        self.perform(Operation::Getattr, move |disk| {
            answer!(reply, disk.getattr(ino.0, fh.map(|fh| fh.0)), found => reply.attr(&CACHE_TTL, &found));
        });
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        fh: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (accessed, modified) = (atime.map(system_time), mtime.map(system_time));
        let changes = Changes { mode, uid, gid, size, accessed, modified };
        let done = self.disk.setattr(ino.0, fh.map(|fh| fh.0), &changes);
        answer!(reply, done, found => reply.attr(&CACHE_TTL, &found));
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let done = self.disk.readlink(ino.0);
        answer!(reply, done, path => reply.data(path.as_os_str().as_encoded_bytes()));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        entry(reply, self.disk.mkdir(parent.0, name, mode, owner(request)));
    }

    fn symlink(&self, _: &Request, parent: INodeNo, name: &OsStr, to: &Path, reply: ReplyEntry) {
        entry(reply, self.disk.symlink(parent.0, name, to));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.perform(Operation::Unlink, move |disk| empty(reply, disk.unlink(parent.0, &name)));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.disk.rmdir(parent.0, name));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let (name, newname) = (name.to_owned(), newname.to_owned());
        self.perform(Operation::Rename, move |disk| {
            empty(reply, disk.rename((parent.0, &name), (newparent.0, &newname)));
        });
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.perform(Operation::Open, move |disk| opened(reply, disk.open(ino.0, flags.0)));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (name, owner) = (name.to_owned(), owner(request));
        self.perform(Operation::Create, move |disk| {
            let done = disk.create(parent.0, &name, mode, flags, owner);
            answer!(reply, done, (found, handle) => reply.created(
                &CACHE_TTL,
                &found,
                Generation(0),
                FileHandle(handle),
                FopenFlags::empty(),
            ));
        });
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.perform(Operation::Read, move |disk| {
            answer!(reply, disk.read(fh.0, offset, size as usize), bytes => reply.data(&bytes));
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = data.to_vec();
        self.perform(Operation::Write, move |disk| {
            let len = data.len() as u32;
            answer!(reply, disk.write(fh.0, offset, &data), () => reply.written(len));
        });
    }

    fn fsync(&self, _: &Request, _: INodeNo, fh: FileHandle, data_only: bool, reply: ReplyEmpty) {
        self.perform(Operation::Write, move |disk| empty(reply, disk.fsync(fh.0, data_only)));
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.disk.release(fh.0);
        reply.ok();
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        opened(reply, self.disk.opendir(ino.0));
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(all) = self.disk.listing(fh.0) else { return reply.error(Errno::EBADF) };
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        for (next, (number, kind, name)) in (1..).zip(all.iter()).skip(begin) {
            if reply.add(INodeNo(*number), next, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.disk.release(fh.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        answer!(reply, self.disk.statfs(ino.0), of => reply.statfs(
            of.f_blocks,
            of.f_bfree,
            of.f_bavail,
            of.f_files,
            of.f_ffree,
            of.f_bsize as u32,
            of.f_namemax as u32,
            of.f_frsize as u32,
        ));
    }
}

fn errno(error: io::Error) -> Errno {
    error.into()
}

fn owner(request: &Request) -> FileOwner {
    FileOwner { uid: request.uid(), gid: request.gid() }
}

fn system_time(time: TimeOrNow) -> SystemTime {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

fn entry(reply: ReplyEntry, done: io::Result<FileAttr>) {
    answer!(reply, done, found => reply.entry(&CACHE_TTL, &found, Generation(0)));
}

fn opened(reply: ReplyOpen, done: io::Result<u64>) {
    answer!(reply, done, handle => reply.opened(FileHandle(handle), FopenFlags::empty()));
}

fn empty(reply: ReplyEmpty, done: io::Result<()>) {
    answer!(reply, done, () => reply.ok());
}
