//! The directives of `main`.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use weir_conf::{Directive, Error, Word, values};
use weir_log::Cause;
use weir_sys::user;

use super::{Affinity, FileThreads, QUEUE, RawConfig, ServerDirective, User, put};
use crate::modules;

pub(super) const LINES: &[ServerDirective] = &[
    ServerDirective {
        name: "daemon",
        help: "Go to the background after the start.",
        set: |raw, d| put(d.flag(), &mut raw.daemon),
    },
    ServerDirective {
        name: "master_process",
        help: "Run workers as processes; off serves from the first process, for debugging.",
        set: |raw, d| put(d.flag(), &mut raw.master),
    },
    ServerDirective {
        name: "pid",
        help: "File with the process id of the master.",
        set: |raw, d| put(Ok(text(d)), &mut raw.pid),
    },
    ServerDirective { name: "user", help: "User and group of the workers.", set: set_user },
    ServerDirective {
        name: "worker_processes",
        help: "Worker processes, or auto: one per processor that weir may use.",
        set: |raw, d| put(count(raw, d), &mut raw.processes),
    },
    ServerDirective {
        name: "worker_threads",
        help: "Event loops of each worker, or auto: one per processor that weir may use.",
        set: |raw, d| put(count(raw, d), &mut raw.threads),
    },
    ServerDirective {
        name: "worker_cpu_affinity",
        help: "Processors of each loop, as masks, or auto: a processor for each.",
        set: |raw, d| put(Affinity::read(d, &raw.machine.allowed), &mut raw.affinity),
    },
    ServerDirective {
        name: "worker_rlimit_nofile",
        help: "Largest number of open files of a worker (RLIMIT_NOFILE).",
        set: |raw, d| put(d.number(), &mut raw.nofile),
    },
    ServerDirective {
        name: "worker_rlimit_core",
        help: "Largest core file of a worker (RLIMIT_CORE).",
        set: |raw, d| put(d.offset(), &mut raw.core),
    },
    ServerDirective {
        name: "worker_priority",
        help: "Nice value of the workers.",
        set: set_priority,
    },
    ServerDirective {
        name: "working_directory",
        help: "Directory of the workers, where their core files go.",
        set: |raw, d| put(Ok(text(d).into()), &mut raw.directory),
    },
    ServerDirective { name: "env", help: "A variable that workers keep, or get.", set: set_env },
    ServerDirective {
        name: "worker_shutdown_timeout",
        help: "How long a worker that was told to finish may take before it closes connections.",
        set: |raw, d| put(d.duration(), &mut raw.shutdown_timeout),
    },
    ServerDirective {
        name: "timer_resolution",
        help: "How often the clock is read, at least; by default once a turn of the loop.",
        set: |raw, d| put(d.duration(), &mut raw.timer_resolution),
    },
    ServerDirective {
        name: "error_log",
        help: "File, stderr or syslog for errors, and the least urgent level to log.",
        set: |raw, d| {
            raw.error_logs.push(d.clone());
            Ok(())
        },
    },
    ServerDirective {
        name: "thread_pool",
        help: "Threads for file operations of a worker, for all loops of it; the pool named default is there anyway.",
        set: set_pool,
    },
    ServerDirective {
        name: "load_module",
        help: "Nothing is loaded: weir has its modules built in, and warns of one that it lacks.",
        set: load_module,
    },
    ServerDirective {
        name: "pcre_jit",
        help: "Accepted; regular expressions are always compiled where PCRE2 can.",
        set: |_, d| d.flag().map(drop),
    },
    ServerDirective {
        name: "lock_file",
        help: "Accepted; weir keeps locks in shared memory, not in files.",
        set: |_, _| Ok(()),
    },
    ServerDirective {
        name: "ssl_object_cache_inheritable",
        help: "Accepted; a reload reads each file of certificates and keys once, and anew.",
        set: |_, d| d.flag().map(drop),
    },
    ServerDirective {
        name: "ssl_engine",
        help: "Ignored with a warning: engines are OpenSSL's, and weir signs with AWS-LC.",
        set: |raw, d| {
            let text = "\"ssl_engine\" ignored: engines are OpenSSL's, which weir does not use";
            raw.warnings.push(d.warning(text));
            Ok(())
        },
    },
    ServerDirective {
        name: "debug_points",
        help: "Accepted; weir has no debug points.",
        set: |_, d| d.choice(&[("stop", ()), ("abort", ())]),
    },
];

/// The argument, which need not be UTF-8.
fn text(d: &Directive) -> OsString {
    d.arg(0).map(|word| OsStr::from_bytes(&word.bytes).to_owned()).unwrap_or_default()
}

/// A positive number of workers or loops, or `auto`.
fn count(raw: &RawConfig, d: &Directive) -> Result<usize, Error> {
    let word = d.arg(0).map(|w| w.bytes.as_slice()).unwrap_or_default();
    if word == b"auto" {
        return Ok(raw.machine.cpus);
    }
    let number = values::number(word).filter(|n| *n > 0).and_then(|n| usize::try_from(n).ok());
    number.ok_or_else(|| d.problem("invalid value"))
}

fn set_user(raw: &mut RawConfig, d: &Directive) -> Result<(), Error> {
    if !rustix::process::geteuid().is_root() {
        raw.warnings.push(d.warning(
            "the \"user\" directive makes sense only if the master process runs \
             with super-user privileges, ignored",
        ));
        return Ok(());
    }
    let Some(name) = d.arg(0) else { return Ok(()) };
    let (user, uid) = find(d, name, "getpwnam", user::user_id)?;
    let (_, gid) = find(d, d.arg(1).unwrap_or(name), "getgrnam", user::group_id)?;
    raw.user = Some(User { name: user, uid, gid });
    Ok(())
}

/// The default user of the workers: nobody, if the master runs as root.
pub(super) fn default_user() -> Result<Option<User>, Error> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let failed = |_| Error::emerg("getpwnam(\"nobody\") failed");
    let uid = user::user_id(c"nobody").map_err(failed)?;
    let failed = |_| Error::emerg("getgrnam(\"nogroup\") failed");
    let gid = user::group_id(c"nogroup").or_else(|_| user::group_id(c"nobody")).map_err(failed)?;
    Ok(Some(User { name: c"nobody".to_owned(), uid, gid }))
}

/// Looks up a name. The error is nginx's.
fn find(
    d: &Directive,
    word: &Word,
    call: &str,
    look: fn(&std::ffi::CStr) -> io::Result<u32>,
) -> Result<(CString, u32), Error> {
    let failed =
        |why: String| d.error_at(word, format!("{call}(\"{}\") failed{why}", word.lossy()));
    let name = CString::new(word.bytes.clone()).map_err(|_| failed(String::new()))?;
    match look(&name) {
        Ok(id) => Ok((name, id)),
        // There is no such name, so there is no OS error.
        Err(e) if e.raw_os_error().is_none() => Err(failed(String::new())),
        Err(e) => Err(failed(format!(" {}", Cause(&e)))),
    }
}

fn set_priority(raw: &mut RawConfig, d: &Directive) -> Result<(), Error> {
    let word = d.arg(0).map(|w| w.bytes.as_slice()).unwrap_or_default();
    let (negative, digits) = match word {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let number = values::number(digits).and_then(|n| i32::try_from(n).ok());
    let number = number.ok_or_else(|| d.problem("invalid number"))?;
    raw.priority = Some(if negative { -number } else { number });
    Ok(())
}

fn set_env(raw: &mut RawConfig, d: &Directive) -> Result<(), Error> {
    let Some(word) = d.arg(0) else { return Ok(()) };
    let bytes = word.bytes.as_slice();
    // nginx accepts an empty name, which no variable has.
    if bytes.is_empty() || bytes.starts_with(b"=") {
        return Ok(());
    }
    if bytes.contains(&0) {
        return Err(d.problem("invalid value"));
    }
    let pair = match bytes.iter().position(|b| *b == b'=') {
        Some(at) => {
            let (name, value) = bytes.split_at(at);
            let value = value.get(1..).unwrap_or_default();
            (OsStr::from_bytes(name).to_owned(), Some(OsStr::from_bytes(value).to_owned()))
        }
        None => (OsStr::from_bytes(bytes).to_owned(), None),
    };
    raw.environment.push(pair);
    Ok(())
}

/// `load_module` is accepted without a warning if weir has the module built in.
fn load_module(raw: &mut RawConfig, d: &Directive) -> Result<(), Error> {
    let file = d.arg(0).map(|word| word.lossy().into_owned()).unwrap_or_default();
    let name = Path::new(&file).file_stem().unwrap_or_default().to_string_lossy();
    if !modules::is_there(&name) {
        let known = modules::directives(&name);
        let which = if known.is_empty() { String::new() } else { format!(": {known}") };
        raw.warnings.push(
            d.warning(format!("\"{name}\" is not part of weir, its directives are refused{which}")),
        );
    }
    Ok(())
}

fn set_pool(raw: &mut RawConfig, d: &Directive) -> Result<(), Error> {
    let name = d.arg(0).map(|w| w.lossy().into_owned()).unwrap_or_default();
    if raw.pools.iter().any(|(of, _)| *of == name) {
        return Err(d.error(format!("duplicate thread pool \"{name}\"")));
    }
    let (mut threads, mut queue) = (None, QUEUE);
    for word in d.args.iter().skip(1) {
        let invalid =
            |what: &str| d.error_at(word, format!("invalid {what} value \"{}\"", word.lossy()));
        let size = |digits| values::number(digits).and_then(|n| usize::try_from(n).ok());
        if let Some(digits) = word.bytes.strip_prefix(b"threads=") {
            let number = size(digits).filter(|n| *n > 0);
            threads = Some(number.ok_or_else(|| invalid("threads"))?);
        } else if let Some(digits) = word.bytes.strip_prefix(b"max_queue=") {
            queue = size(digits).ok_or_else(|| invalid("max_queue"))?;
        }
    }
    let Some(threads) = threads else {
        return Err(d.error("\"thread_pool\" must have \"threads\" parameter"));
    };
    raw.pools.push((name, FileThreads { threads, queue }));
    Ok(())
}
